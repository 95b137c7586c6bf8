//! The appliance of one run: a child process with private state.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Child;

use super::logins::Logins;
use super::places::Places;
use crate::app::{self, PrivateOptions, PrivateStart};
use crate::cli::exit::{Failure, code};
use crate::sandbox::Channel;

/// The hidden command that is the appliance.
pub const APPLIANCE: &str = "run-appliance";

/// How long it may take to end: its own drain, and a little.
const LAST: Duration = Duration::from_secs(12);
/// Audit logs of runs that are kept.
const KEPT_RUNS: usize = 500;

/// The shipped configuration, in force where there is no other.
const SHIPPED: [(&str, &str); 1] = [(
    "allowlist.yaml",
    include_str!("../../../config/allowlist.yaml"),
)];

/// A running appliance. Dropping it ends it.
pub struct Appliance {
    child: Child,
    channel: Channel,
    readiness: UnixStream,
    options: PrivateOptions,
    log: PathBuf,
    _state: TempDir,
}

impl Appliance {
    /// Starts it; it is ready later. Needs a runtime.
    pub fn start(
        config: Option<PathBuf>,
        allow: Vec<String>,
        logins: Option<&Logins>,
        places: &Places,
        kept: &Path,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::internal(format_args!("the appliance cannot be started: {error}"))
        };
        let state = private_directory().map_err(failed)?;
        let config = match config.or_else(own_config) {
            Some(config) => usable(&config, places)?,
            None => write_shipped(state.path()).map_err(failed)?,
        };
        let runs = kept.join("runs");
        forget_old(&runs);
        let name = run_name();
        let mut options = PrivateOptions {
            state: state.path().to_owned(),
            config,
            allow,
            logins: None,
            audit: runs.join(format!("{name}.jsonl")),
        };
        if let Some(logins) = logins {
            let directory = state.path().join("logins");
            fs::create_dir(&directory).map_err(failed)?;
            fs::write(directory.join("credentials.yaml"), logins.credentials()).map_err(failed)?;
            options.logins = Some(directory);
        }
        let log = runs.join(format!("{name}.log"));
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let mut command = std::process::Command::new("/proc/self/exe");
        command
            .arg0("unified-proxy")
            .arg(APPLIANCE)
            .stdin(theirs.into_inner())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).map_err(failed)?)
            // A key that interrupts the command does not interrupt its way out.
            .process_group(0);
        if let Some(logins) = logins {
            command.envs(logins.environment());
        }
        let mut command = tokio::process::Command::from(command);
        let child = command.kill_on_drop(true).spawn().map_err(failed)?;
        channel.send(&options, &[]).map_err(failed)?;
        Ok(Self {
            child,
            readiness: channel.watch().map_err(failed)?,
            channel,
            options,
            log,
            _state: state,
        })
    }

    /// Waits until its admin socket answers.
    pub async fn ready(&mut self) -> Result<(), Failure> {
        let receive = || self.channel.try_receive::<PrivateStart>();
        match self.readiness.async_io(Interest::READABLE, receive).await {
            Ok(Some((PrivateStart::Ready, _))) => Ok(()),
            Ok(Some((PrivateStart::Failed(code, message), _))) => Err(Failure::new(code, message)),
            Ok(None) | Err(_) => Err(self.lost()),
        }
    }

    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        self.options.socket()
    }

    /// The directory of its state.
    pub fn state(&self) -> &Path {
        &self.options.state
    }

    /// Waits until it ends, which it should not.
    pub async fn ended(&mut self) -> Failure {
        let _ = self.child.wait().await;
        self.lost()
    }

    fn lost(&self) -> Failure {
        let log = self.log.display();
        Failure::internal(format_args!(
            "the appliance ended; the sandbox has ended with it: see {log}"
        ))
    }

    /// Ends it once its flows have ended, and answers where its audit log is.
    pub async fn stop(mut self) -> PathBuf {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // One that cannot be delivered is for a process that has ended.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = tokio::time::timeout(LAST, self.child.wait()).await;
        if fs::metadata(&self.log).is_ok_and(|log| log.len() == 0) {
            let _ = fs::remove_file(&self.log);
        }
        self.options.audit
    }
}

/// Runs as the appliance, with the launcher's channel as standard input.
pub fn run() -> std::process::ExitCode {
    // Checked below: a launcher that is gone has closed its end.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let channel = Channel::from_stdin();
    let options = match channel.receive::<PrivateOptions>() {
        Ok(Some((options, _))) => options,
        Ok(None) | Err(_) => return Failure::internal("it is started by `run` alone").report(),
    };
    let runtime = match app::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::internal(format_args!("cannot start: {error}")).report(),
    };
    match runtime.block_on(app::run_private(options, &channel)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => Failure::new(failure.code(), failure).report(),
    }
}

/// A directory for state that ends with the run, where no sandbox looks: the path of a socket in
/// it must be short, so TMPDIR is not used.
fn private_directory() -> std::io::Result<TempDir> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute() && path.is_dir());
    let mut builder = tempfile::Builder::new();
    builder.prefix("unified-proxy-");
    match runtime.map(|path| builder.tempdir_in(path)) {
        Some(Ok(directory)) => Ok(directory),
        Some(Err(_)) | None => builder.tempdir_in("/tmp"),
    }
}

/// The person's own configuration, or the machine's.
fn own_config() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let own = base.filter(|base| base.is_absolute()).or(home);
    let own = own.map(|base| base.join("unified-proxy"));
    let candidates = own.into_iter().chain([crate::cli::CONFIG_DIR.into()]);
    candidates.into_iter().find(|path| path.is_dir())
}

/// A configuration that the command could change is none.
fn usable(config: &Path, places: &Places) -> Result<PathBuf, Failure> {
    let refused = |what: std::fmt::Arguments<'_>| Err(Failure::new(code::CONFIG, what));
    let config = match fs::canonicalize(config) {
        Ok(config) => config,
        Err(error) => return refused(format_args!("{}: {error}", config.display())),
    };
    let writable = places.writable.iter().find(|path| config.starts_with(path));
    match writable {
        None => Ok(config),
        Some(path) => refused(format_args!(
            "the sandbox could change its own configuration: {} lies in {}, which it may write \
             to: move it elsewhere, or start in another directory",
            config.display(),
            path.display()
        )),
    }
}

fn write_shipped(state: &Path) -> std::io::Result<PathBuf> {
    let config = state.join("config");
    fs::create_dir(&config)?;
    for (name, text) in SHIPPED {
        fs::write(config.join(name), text)?;
    }
    Ok(config)
}

/// Time and process: runs sort by it, and no two have the same.
fn run_name() -> String {
    let now = time::OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z-{}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        std::process::id()
    )
}

/// Removes the logs of all but the newest runs.
fn forget_old(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let mut logs: Vec<_> = entries.map(|entry| entry.path()).collect();
    logs.sort();
    // A run has an audit log, with what was rotated, and perhaps a log.
    for old in logs.iter().rev().skip(2 * KEPT_RUNS) {
        let _ = fs::remove_file(old);
    }
}
