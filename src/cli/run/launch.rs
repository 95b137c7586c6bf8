//! The life of one run: appliance, sandbox, and what passes between the command and the person.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::future::pending;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Run;
use super::appliance::Appliance;
use super::environment::environment;
use super::git_settings::git_settings;
use super::logins::Logins;
use super::placeholders::Placeholders;
use super::places::{self, Places};
use super::protected::Protected;
use super::registration::{RENEWAL, Registration};
use super::report::Report;
use super::terminal::{HostTerminal, Streams, stop_ourselves};
use super::visible::{self, CERTIFICATES};
use super::watched::WatchedFlows;
use crate::admin::SandboxSettings;
use crate::cli::exit::{Failure, code};
use crate::cli::sandbox_files;
use crate::cli::variables::variables;
use crate::sandbox::{self, Command, Entry, Event, PROXY_PORT, Refused, Sandbox, Signalled, Spec};

/// The host name inside.
const HOST_NAME: &str = "sandbox";
/// Where tools keep the logins that `sandbox-files` names by the tool.
const LOGIN_FILES: [(&str, &str); 4] = [
    ("claude/.credentials.json", ".claude/.credentials.json"),
    ("codex/auth.json", ".codex/auth.json"),
    ("gemini/oauth_creds.json", ".gemini/oauth_creds.json"),
    ("opencode/auth.json", ".local/share/opencode/auth.json"),
];
/// Claude Code asks who is logged in when it runs for the first time; the placeholder is.
const CLAUDE_SETTINGS: (&str, &str) = (".claude.json", "{\"hasCompletedOnboarding\":true}\n");

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::new(refused.code, refused)
    }
}

/// Runs the command; answers with its exit code.
pub fn launch(run: Run) -> Result<u8, Failure> {
    close_inherited();
    let places = Places::find(&run.write, &run.read)?;
    let kept = places::kept_state(&places)?;
    // Opened before the command could put a link in its place.
    let learn = run.learn.as_deref().map(create).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::internal)?;
    runtime.block_on(async {
        let mut placeholders = Placeholders::lock(&places.writable, &kept).map_err(|error| {
            Failure::internal(format_args!("placeholders cannot be locked: {error}"))
        })?;
        let (ended, report) = live(&run, &places, &kept, &mut placeholders).await?;
        if !run.quiet {
            // Nobody to tell, if this fails.
            let _ = io::stderr().write_all(report.denials().as_bytes());
        }
        if let Some(mut file) = learn {
            report.write_allowlist(&mut file).map_err(|error| {
                Failure::internal(format_args!("the allowlist cannot be written: {error}"))
            })?;
        }
        Ok(ended)
    })
}

/// Closes what a careless parent left open: nothing of ours is open yet but the three streams.
fn close_inherited() {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        let message = format_args!("--learn {}: {error}", path.display());
        Failure::new(code::USAGE, message)
    })
}

/// Starts everything, stays until the command has ended, and ends everything.
async fn live(
    run: &Run,
    places: &Places,
    kept: &Path,
    placeholders: &mut Placeholders,
) -> Result<(u8, Report), Failure> {
    let mut signals = Signals::listen().map_err(Failure::internal)?;
    // It makes the namespaces while the appliance starts.
    let mut sandbox = sandbox::start()?;
    let logins = run
        .with_logins
        .then(|| Logins::find(places.real_home.as_deref()));
    announce(run, logins.as_ref());
    let mut appliance = match &run.server {
        Some(_) => None,
        None => {
            let (config, allow) = (run.config.clone(), run.allow.clone());
            Some(Appliance::start(
                config,
                allow,
                logins.as_ref(),
                places,
                kept,
            )?)
        }
    };
    let own = appliance.as_ref().map(|appliance| appliance.state());
    let hidden: Vec<PathBuf> = own
        .or(run.server.as_deref())
        .map(Path::to_owned)
        .into_iter()
        .collect();
    let found = Protected::find(&places.writable, &places.readable, &hidden)
        .map_err(|problem| Failure::new(code::USAGE, problem))?;
    placeholders
        .make(&found.missing)
        .map_err(|error| Failure::new(code::USAGE, format_args!("placeholder {error}")))?;
    if let Some(appliance) = &mut appliance {
        appliance.ready().await?;
    }
    let socket = run.server.clone();
    let socket = socket
        .or(appliance.as_ref().map(Appliance::socket))
        .unwrap_or_default();
    let mut registration = Registration::begin(socket.clone(), run).await?;
    let settings = registration.settings().await?;
    let watched = match &run.server {
        Some(_) => Some(WatchedFlows::open(&socket, registration.id()).await?),
        None => None,
    };
    let ended = async {
        let mut streams = Streams::look().map_err(|error| {
            Failure::new(
                code::USAGE,
                format_args!("the terminal cannot be used: {error}"),
            )
        })?;
        let mut spec = spec(run, places, &settings, found.entries)?;
        spec.terminal = streams.wanted;
        let fds = streams.streams.each_ref().map(AsFd::as_fd);
        sandbox.begin(&registration.listener, &spec, fds)?;
        // Only the command holds them now, so that their readers see its end.
        drop(streams.streams);
        attend(
            &mut sandbox,
            &mut registration,
            appliance.as_mut(),
            streams.terminal.as_mut(),
            &mut signals,
            run.server.is_some(),
        )
        .await
        .map(|ended| (ended, streams.terminal.take()))
    }
    .await;
    drop(sandbox);
    let ended = match ended {
        Ok((ended, terminal)) => {
            if let Some(terminal) = terminal {
                terminal.finish().await;
            }
            Ok(ended)
        }
        Err(failure) => Err(failure),
    };
    let report = match (appliance, watched) {
        (Some(appliance), _) => read_audit(&appliance.stop().await),
        (None, watched) => {
            registration.end().await;
            match watched {
                Some(watched) => watched.finish().await,
                None => Report::default(),
            }
        }
    };
    Ok((ended?, report))
}

/// Passes on what happens until the command has ended; answers with its exit code.
async fn attend(
    sandbox: &mut Sandbox,
    registration: &mut Registration,
    mut appliance: Option<&mut Appliance>,
    mut terminal: Option<&mut HostTerminal>,
    signals: &mut Signals,
    renews: bool,
) -> Result<u8, Failure> {
    let mut renewal = tokio::time::interval(RENEWAL);
    renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    renewal.reset();
    loop {
        tokio::select! {
            event = sandbox.next() => match event? {
                Event::Started => {}
                Event::Terminal(controlling) => {
                    if let Some(terminal) = &mut terminal {
                        terminal.connect(controlling).map_err(Failure::internal)?;
                    }
                }
                Event::Stopped => stop_ourselves(terminal.as_deref()),
                Event::Ended(ending) => return Ok(ending.exit_code()),
            },
            number = signals.next() => pass_on(number, sandbox, terminal.as_deref()),
            failure = ended(&mut appliance) => return Err(failure),
            _ = renewal.tick(), if renews => {
                // A server that is away may be back before the lease has run out.
                if let Ok(true) = registration.renew().await {
                    sandbox.lead_to(&registration.listener);
                }
            }
        }
    }
}

async fn ended(appliance: &mut Option<&mut Appliance>) -> Failure {
    match appliance {
        Some(appliance) => appliance.ended().await,
        None => pending().await,
    }
}

fn pass_on(number: i32, sandbox: &Sandbox, terminal: Option<&HostTerminal>) {
    let kind = SignalKind::from_raw(number);
    if kind == SignalKind::window_change() {
        if let Some(terminal) = terminal {
            terminal.resize();
        }
        return;
    }
    let continued = number == rustix::process::Signal::CONT.as_raw();
    if continued && let Some(terminal) = terminal {
        terminal.take();
        terminal.resize();
    }
    let stopped = number == rustix::process::Signal::TSTP.as_raw();
    let by_key =
        continued || stopped || [SignalKind::interrupt(), SignalKind::quit()].contains(&kind);
    let to = match by_key {
        true => Signalled::Foreground,
        false => Signalled::Command,
    };
    sandbox.signal(number, to);
}

/// The signals that are passed on.
struct Signals(Vec<(i32, Signal)>);

impl Signals {
    fn listen() -> io::Result<Self> {
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::window_change(),
            SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()),
            SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()),
        ];
        let listening = kinds.map(|kind| Ok((kind.as_raw_value(), signal(kind)?)));
        listening.into_iter().collect::<io::Result<_>>().map(Self)
    }

    /// The next one. Cancellation-safe.
    async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

fn announce(run: &Run, logins: Option<&Logins>) {
    let Some(logins) = logins.filter(|_| !run.quiet) else {
        return;
    };
    let names = logins.names();
    let text = match names.is_empty() {
        true => "no login was found for --with-logins".to_owned(),
        false => format!(
            "the command acts with these logins, which it does not see: {}",
            names.join(", ")
        ),
    };
    // Nobody to tell, if this fails.
    let _ = writeln!(io::stderr(), "unified-proxy: {text}");
}

/// What the sandbox is to be.
fn spec(
    run: &Run,
    places: &Places,
    settings: &SandboxSettings,
    protected: Vec<Entry>,
) -> Result<Spec, Failure> {
    let (program, arguments) = run
        .command
        .split_first()
        .ok_or_else(|| Failure::new(code::USAGE, "a command must follow --"))?;
    let found = find_program(program, &places.directory);
    let certificates = Path::new(&settings.certs_dir);
    let certificates = fs::canonicalize(certificates).map_err(|error| {
        let message = format_args!("the server's certificates, {}: {error}", settings.certs_dir);
        Failure::new(code::UNAVAILABLE, message)
    })?;
    let mut files = visible::entries(places, &certificates, found.as_deref());
    let (logins, keys) = placeholder_logins(settings);
    let mut home = logins;
    if let Some(text) = git_settings() {
        home.insert(".gitconfig".into(), text);
    }
    files.extend(home.into_iter().map(|(path, text)| Entry::File {
        at: places.home.join(path),
        text,
    }));
    files.extend(protected);
    let proxy = variables(
        &format!("http://127.0.0.1:{PROXY_PORT}"),
        Path::new(CERTIFICATES),
    );
    let proxy = proxy
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Ok(Spec {
        hostname: HOST_NAME.to_owned(),
        files,
        command: Command {
            program: program.clone(),
            arguments: arguments.to_vec(),
            environment: environment(&places.home, proxy, keys),
            directory: places.directory.clone(),
        },
        terminal: None,
    })
}

/// Files of the home directory and variables that stand for what the proxy injects.
fn placeholder_logins(
    settings: &SandboxSettings,
) -> (BTreeMap<PathBuf, String>, Vec<(String, String)>) {
    let (files, keys) = sandbox_files::placeholders(&settings.credentials);
    let mut home = BTreeMap::new();
    for (name, at) in LOGIN_FILES {
        if let Some(text) = files.get(Path::new(name)) {
            home.insert(PathBuf::from(at), text.clone());
        }
    }
    if keys
        .iter()
        .any(|(name, _)| name.contains("CLAUDE") || name.contains("ANTHROPIC"))
    {
        let (path, text) = CLAUDE_SETTINGS;
        home.insert(path.into(), text.to_owned());
    }
    (home, keys)
}

/// Where a program is, as a shell would find it, without links.
fn find_program(name: &OsString, directory: &Path) -> Option<PathBuf> {
    let name = Path::new(name);
    if name.components().count() > 1 {
        return fs::canonicalize(directory.join(name)).ok();
    }
    let path = env::var_os("PATH")?;
    let mut candidates = env::split_paths(&path).map(|folder| folder.join(name));
    let found = candidates.find(|candidate| candidate.is_file())?;
    fs::canonicalize(found).ok()
}

/// Counts what an appliance of our own wrote of this run.
fn read_audit(path: &Path) -> Report {
    let mut report = Report::default();
    let Ok(file) = File::open(path) else {
        return report;
    };
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        if let Ok(flow) = serde_json::from_str::<Value>(&line) {
            report.add(&flow);
        }
    }
    report
}
