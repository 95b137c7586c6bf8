//! The appliance of one run: a child process with private state.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;
use time::macros::format_description;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::Run;
use super::directories::{RunDirectories, absolute_path_of, kept_directory};
use super::logins::Logins;
use crate::app::{self, PrivateOptions, PrivateStart, socket_in};
use crate::cli::exit::{Failure, code};
use crate::config;
use crate::sandbox::{Channel, SELF_EXE};

/// The hidden subcommand of the appliance.
pub const APPLIANCE: &str = "run-appliance";

/// Limit on the wait for the appliance to end. By default, the appliance gives its flows 10 s
/// (`shutdown_timeout`), and takes up to 3 s more.
const APPLIANCE_EXIT_WAIT: Duration = Duration::from_secs(15);
/// An unlocked state directory older than this belongs to a run that has ended. A younger one may
/// belong to a run that is about to lock it.
const LOCK_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Limit on the length of the path of a directory for the state of runs. A socket's path has at most
/// 107 bytes, of which `/run-XXXXXX/mcp-` with 12 hex digits and `.sock` take 33.
const MAX_STATE: usize = 74;
/// The number of runs whose logs are kept.
const KEPT_RUNS: usize = 500;

/// The allowlist that is used if there is no configuration of the user or of the machine.
const SHIPPED_ALLOWLIST: &str = include_str!("../../../config/allowlist.yaml");

/// A running appliance. Dropping this value kills the process.
pub struct Appliance {
    child: Child,
    channel: Channel,
    readiness: UnixStream,
    options: PrivateOptions,
    /// The configuration directory, if no `--config` named it.
    default_config: Option<PathBuf>,
    log: PathBuf,
    _lock: File,
    _state: TempDir,
}

impl Appliance {
    /// Starts an appliance, without waiting until it is ready. `kept` is the directory for files
    /// that outlive the run. Must be called within a runtime.
    pub fn start(
        run: &Run,
        logins: Option<&Logins>,
        directories: &RunDirectories,
        kept: &Path,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::internal(format_args!("the appliance cannot be started: {error}"))
        };
        let (state, lock) = private_directory(kept).map_err(failed)?;
        let default_config = match run.config {
            Some(_) => None,
            None => own_config(),
        };
        let config = run.config.clone();
        let config = match config.or_else(|| default_config.clone()) {
            Some(config) => usable(&config, directories)?,
            None => write_shipped(state.path()).map_err(failed)?,
        };
        let runs = kept.join("runs");
        forget_old(&runs);
        let name = run_name();
        let mut options = PrivateOptions {
            state: state.path().to_owned(),
            config,
            allow: run.allow.clone(),
            ask: run.ask,
            host_ports: run.host_ports.clone(),
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
        let (channel, child_end) = Channel::pair().map_err(failed)?;
        let child = Command::new(SELF_EXE)
            .arg0("unified-proxy")
            .arg(APPLIANCE)
            .stdin(child_end.into_inner())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(failed)?)
            // Its own group, so that Ctrl-C does not end the appliance before the command.
            .process_group(0)
            .envs(logins.map(Logins::environment).unwrap_or_default())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        channel.send(&options, &[]).map_err(failed)?;
        Ok(Self {
            child,
            readiness: channel.watch().map_err(failed)?,
            channel,
            options,
            default_config,
            log,
            _lock: lock,
            _state: state,
        })
    }

    /// Waits until the appliance reports that it is ready. Fails with the appliance's error if it
    /// could not start.
    pub async fn ready(&mut self) -> Result<(), Failure> {
        let receive = || self.channel.try_receive::<PrivateStart>();
        match self.readiness.async_io(Interest::READABLE, receive).await {
            Ok(Some((PrivateStart::Ready, _))) => Ok(()),
            Ok(Some((PrivateStart::Failed(code, message), _))) => {
                Err(Failure::new(code, self.with_directory(code, message)))
            }
            Ok(None) | Err(_) => Err(self.lost()),
        }
    }

    /// Adds the directory to the errors of a configuration that the user did not name. The machine's
    /// configuration is that of its server: other users may not read its credentials.
    fn with_directory(&self, code: u8, message: String) -> String {
        let Some(directory) = self
            .default_config
            .as_ref()
            .filter(|_| code == code::CONFIG)
        else {
            return message;
        };
        let own = match directory == Path::new(crate::cli::CONFIG_DIR) {
            true => ", or make your own in ~/.config/unified-proxy",
            false => "",
        };
        let directory = directory.display();
        format!(
            "{message}\nthis is the configuration in {directory}: name another one with --config DIR{own}"
        )
    }

    pub fn socket(&self) -> PathBuf {
        self.options.socket()
    }

    /// Waits until the appliance ends unexpectedly; returns the failure to report.
    pub async fn ended(&mut self) -> Failure {
        let _ = self.child.wait().await;
        self.lost()
    }

    fn lost(&self) -> Failure {
        let log = self.log.display();
        Failure::internal(format_args!(
            "the appliance ended unexpectedly, and the sandbox has ended with it: see the log {log}"
        ))
    }

    /// Sends SIGTERM to the appliance, which then drains its flows. Kills the appliance if it has
    /// not ended after [`APPLIANCE_EXIT_WAIT`]. Deletes an empty log. Returns the path of the audit
    /// log.
    pub async fn stop(mut self) -> PathBuf {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // Fails if the process has ended.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = tokio::time::timeout(APPLIANCE_EXIT_WAIT, self.child.wait()).await;
        if fs::metadata(&self.log).is_ok_and(|log| log.len() == 0) {
            let _ = fs::remove_file(&self.log);
        }
        self.options.audit
    }
}

/// Runs as the appliance. Its standard input is the launcher's channel.
pub fn run() -> Result<(), Failure> {
    // The process name in `ps`. An error is harmless.
    let _ = rustix::thread::set_name(c"up-appliance");
    // Ends the appliance with the launcher. An error is harmless too: the appliance also ends when
    // the launcher's end of the channel is closed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    let channel = Channel::from_stdin();
    let Ok(Some((options, _))) = channel.receive::<PrivateOptions>() else {
        return Err(Failure::internal("only `run` starts this command"));
    };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| {
        Failure::internal(format_args!("the runtime cannot be started: {error}"))
    })?;
    Ok(runtime.block_on(app::run_private(options, &channel))?)
}

/// Returns the directories that may contain the state directories of this user's runs. No sandbox
/// sees them.
///
/// Runs use the first one that they can use. It is not in TMPDIR or the home directory, since the
/// paths of its sockets must be short. Every user can create a directory of this name before the
/// first run. The others are out of their reach: one in `kept`, and one in `XDG_RUNTIME_DIR` for a
/// long path of `kept`.
pub fn state_directories(kept: &Path) -> Vec<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let runtime = absolute_path_of("XDG_RUNTIME_DIR").map(|base| base.join("unified-proxy"));
    let first = PathBuf::from(format!("/tmp/unified-proxy-{user}"));
    [first, kept.join("running")]
        .into_iter()
        .chain(runtime)
        .collect()
}

/// Creates and locks the state directory of one run, and removes the directories of killed runs.
/// Dropping the [`TempDir`] deletes the directory.
pub fn private_directory(kept: &Path) -> io::Result<(TempDir, File)> {
    let mut made = Err(io::Error::other("no directory can hold its state"));
    for path in state_directories(kept) {
        made = make_private(path);
        if made.is_ok() {
            break;
        }
    }
    let all = made?;
    remove_ended(&all);
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("run-")
        .permissions(fs::Permissions::from_mode(0o700));
    let directory = builder.tempdir_in(all)?;
    let lock = File::open(directory.path())?;
    lock.lock()?;
    Ok((directory, lock))
}

/// Creates a directory that only this user can use, and returns its path. Fails if there is already
/// a file, a symbolic link, or a directory that other users can use, or if sockets in the directory
/// of a run would have paths that are too long.
fn make_private(path: PathBuf) -> io::Result<PathBuf> {
    if path.as_os_str().len() > MAX_STATE {
        let text = format!(
            "{} has more than {MAX_STATE} bytes: set XDG_STATE_HOME to a shorter path",
            path.display()
        );
        return Err(io::Error::other(text));
    }
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_private(&path)? {
        let text = format!(
            "{} is not a private directory of this user: remove it",
            path.display()
        );
        return Err(io::Error::other(text));
    }
    Ok(path)
}

/// Whether the path is a directory of this user that no other user can use.
fn is_private(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    let is_ours = found.uid() == rustix::process::getuid().as_raw();
    Ok(found.is_dir() && is_ours && found.mode() & 0o077 == 0)
}

/// The admin sockets of this user's runs. Those of killed runs may be among them.
pub fn sockets_of_runs() -> Vec<PathBuf> {
    let kept = kept_directory(absolute_path_of("HOME").as_deref()).unwrap_or_default();
    let all = state_directories(&kept).into_iter();
    let all = all.filter(|path| is_private(path).is_ok_and(|private| private));
    let runs = all.flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten());
    let sockets = runs.map(|run| socket_in(&run.path()));
    sockets.filter(|socket| socket.exists()).collect()
}

/// Removes the state directories of killed runs: those that are unlocked and not new.
fn remove_ended(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let path = entry.path();
        let age = entry.metadata().and_then(|found| found.modified());
        let is_old = age.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LOCK_GRACE_PERIOD));
        let has_ended = File::open(&path).is_ok_and(|lock| lock.try_lock().is_ok());
        if is_old && has_ended {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Returns the configuration directory of the user or, if that does not exist, the configuration
/// directory of the machine. `None` if neither directory exists.
fn own_config() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let own = absolute_path_of("XDG_CONFIG_HOME").or(home);
    let own = own.map(|base| base.join("unified-proxy"));
    let mut candidates = own.into_iter().chain([crate::cli::CONFIG_DIR.into()]);
    candidates.find(|path| path.is_dir())
}

/// Resolves the configuration directory. Refuses it if the command could write to the directory or
/// to one of its configuration files.
fn usable(config: &Path, directories: &RunDirectories) -> Result<PathBuf, Failure> {
    let refused = |what: std::fmt::Arguments<'_>| Err(Failure::new(code::CONFIG, what));
    let config = match fs::canonicalize(config) {
        Ok(config) => config,
        Err(error) => return refused(format_args!("{}: {error}", config.display())),
    };
    // A file may be a link out of its directory.
    let files = config::FILES.map(|name| config.join(name));
    let files = files.iter().filter_map(|file| fs::canonicalize(file).ok());
    let mut all = files.chain([config.clone()]);
    match all.find_map(|file| directories.writable_above(&file)) {
        None => Ok(config),
        Some(path) => refused(format_args!(
            "the sandbox could change its own configuration: {} is in {}, which the command may \
             write to: move the configuration elsewhere, or start in another directory",
            config.display(),
            path.display()
        )),
    }
}

fn write_shipped(state: &Path) -> io::Result<PathBuf> {
    let config = state.join("config");
    fs::create_dir(&config)?;
    fs::write(config.join("allowlist.yaml"), SHIPPED_ALLOWLIST)?;
    Ok(config)
}

/// A unique name for the logs of a run, from time and process id. Names sort by time.
fn run_name() -> String {
    let now = time::OffsetDateTime::now_utc();
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    // Cannot fail: a date and a time have all components of the format.
    let time = now.format(format).unwrap_or_default();
    format!("{time}-{}", std::process::id())
}

/// Removes the logs of the oldest runs, so that those of the newest [`KEPT_RUNS`] runs remain.
fn forget_old(runs: &Path) {
    let mut logs = BTreeMap::<_, Vec<PathBuf>>::new();
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let run = file.split_once('.').map_or(&*file, |(run, _)| run);
        logs.entry(run.to_owned()).or_default().push(entry.path());
    }
    for old in logs.values().rev().skip(KEPT_RUNS).flatten() {
        let _ = fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_logs_of_the_newest_runs_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for run in 0..KEPT_RUNS + 2 {
            for ending in ["jsonl", "jsonl.head", "log"] {
                let name = format!("20260101T{run:06}Z-7.{ending}");
                fs::write(directory.path().join(name), "").unwrap();
            }
        }
        forget_old(directory.path());
        let kept = fs::read_dir(directory.path()).unwrap();
        let mut kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
        kept.sort();
        assert_eq!(kept.len(), 3 * KEPT_RUNS);
        assert_eq!(kept[0], "20260101T000002Z-7.jsonl");
    }
}
