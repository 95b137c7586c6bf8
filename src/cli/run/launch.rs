//! Runs a command: starts the appliance and the sandbox, forwards the terminal and signals, and
//! prints the report.

use std::fs::{self, File};
use std::future::pending;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, timeout};

use super::Run;
use super::appliance::{self, Appliance};
use super::directories::{self, RunDirectories};
use super::environment::masked_variables;
use super::file_watch::FileWatch;
use super::git_copies::GitCopies;
use super::learned_file::LearnedFile;
use super::logins::Logins;
use super::placeholders::{Placeholders, covers};
use super::programs::trusted_program;
use super::protected::Protected;
use super::registration::{RENEWAL, Registration};
use super::report::{Changes, Report, text_of_changes};
use super::signals::{SignalEvent, Signals};
use super::specification::{Prepared, specification};
use super::terminal::{HostTerminal, Streams, stop_ourselves};
use super::watched::WatchedFlows;
use crate::cli::exit::{Failure, code, printable};
use crate::sandbox::{self, Event, Refused, Sandbox};

/// Tells the user of `--ask` how to answer.
const ASKS: &str = "a person is asked about hosts that are not allowed: answer in another terminal, with \
                    `unified-proxy approvals --watch`";
/// Time limit for the renewal of a lease.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::new(refused.code, refused)
    }
}

/// Runs the command and returns its exit code.
pub fn launch(run: Run) -> Result<u8, Failure> {
    close_inherited();
    if sandbox::is_inside() {
        let message = "this is a sandbox of unified-proxy already, and a sandbox cannot make another one: \
                       start the command without `unified-proxy run`, since it is confined as it is. If \
                       it needs other permissions, end the outer run and start it with their flags";
        return Err(Failure::new(code::UNAVAILABLE, message));
    }
    let directories = RunDirectories::find(&run.write, &run.read)?;
    if let Some(hint) = directories.hint_of_git()?.filter(|_| !run.quiet) {
        say(&hint);
    }
    let kept = directories::kept_state(&directories)?;
    let learn = run.learn.as_deref().map(LearnedFile::open).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::internal)?;
    runtime.block_on(async {
        let shown = directories.shown().cloned().collect();
        let mut placeholders = Placeholders::record(shown, &kept).map_err(|error| {
            Failure::internal(format_args!("placeholders cannot be recorded: {error}"))
        })?;
        let mut signals = Signals::listen().map_err(Failure::internal)?;
        let mut parts = tokio::select! {
            parts = Parts::start(&run, &directories, &kept, &mut placeholders) => parts?,
            interrupted = signals.interrupted() => return Ok(interrupted),
        };
        let ended = parts.run_command(&run, &directories, &mut signals).await;
        let ending = parts
            .end(ended.is_ok(), run.quiet, &directories.writable)
            .await;
        let (report, changes, settings) = ending;
        // Printed in any case, since the host may execute or obey these files at once.
        let mut text = text_of_changes(&changes) + &settings;
        if ended.is_ok() && !run.quiet {
            let decided = report.decisions(run.learn.is_some());
            text.insert_str(0, &(report.denials() + &decided));
        }
        // A write error is ignored: there is no other output for the report.
        let _ = io::stderr().write_all(text.as_bytes());
        let ended = ended?;
        if let Some(file) = learn {
            file.write(&report.allowlist(run.ask))?;
        }
        Ok(ended)
    })
}

/// Closes the descriptors that were inherited from the parent process, except the three standard
/// streams. Must run before this process opens descriptors of its own.
fn close_inherited() {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // Fails for the descriptor of the listing, which is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

/// The resources of one run.
struct Parts {
    sandbox: Sandbox,
    /// `None` with `--server`.
    appliance: Option<Appliance>,
    registration: Registration,
    /// Counts the flows of this run's container, as the server reports them; `None` without
    /// `--server`.
    watched: Option<WatchedFlows>,
    /// The protected files in the directories of the run.
    protected: Protected,
    file_watch: FileWatch,
    git_copies: Option<GitCopies>,
    prepared: Prepared,
    renewal: Interval,
}

impl Parts {
    /// Starts the appliance and the sandbox, finds and protects files, and registers the container.
    async fn start(
        run: &Run,
        directories: &RunDirectories,
        kept: &Path,
        placeholders: &mut Placeholders,
    ) -> Result<Self, Failure> {
        // The forwarder creates the namespaces while the appliance starts.
        let mut sandbox = sandbox::start(Path::new(sandbox::SELF_EXE))?;
        sandbox.host_ports.clone_from(&run.host_ports);
        let (mut appliance, socket) = match &run.server {
            Some(socket) => (None, socket.clone()),
            None => {
                let appliance = start_appliance(run, directories, kept)?;
                let socket = appliance.socket();
                (Some(appliance), socket)
            }
        };
        let git = trusted_program("git", &directories.writable);
        let protected = Protected::find(
            &directories.writable,
            &directories.readable,
            directories.real_home.as_deref(),
            git.clone(),
        );
        let mut protected = protected.map_err(Failure::usage)?;
        let uncreatable = placeholders.make(protected.take_missing());
        protected.forget(&uncreatable.map_err(Failure::usage)?);
        let file_watch = FileWatch::watch(protected.obeyed()).map_err(|error| {
            Failure::internal(format_args!("protected files cannot be watched: {error}"))
        })?;
        // After the watch began, so that the copies are those of the files that it watches.
        let configs = protected.git_configs();
        let git_copies = git.map(|git| GitCopies::make(&configs, git, kept));
        let git_copies = git_copies.transpose().map_err(|error| {
            Failure::internal(format_args!(
                "the settings of git cannot be copied: {error}"
            ))
        })?;
        let prepared = Prepared::look(directories);
        protected.hide(appliance::state_directories(kept));
        protected.hide([socket.clone()]);
        if let Some(appliance) = &mut appliance {
            appliance.ready().await?;
        }
        if run.ask && !run.quiet {
            say(ASKS);
        }
        let registration = Registration::begin(socket, run).await?;
        let watched = match run.server {
            Some(_) => Some(WatchedFlows::open(&registration.client, registration.id()).await?),
            None => None,
        };
        let mut renewal = tokio::time::interval(RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renewal.reset();
        Ok(Self {
            sandbox,
            appliance,
            registration,
            watched,
            protected,
            file_watch,
            git_copies: git_copies.flatten(),
            prepared,
            renewal,
        })
    }

    /// Starts the command in the sandbox, waits for its end and returns its exit code.
    async fn run_command(
        &mut self,
        run: &Run,
        directories: &RunDirectories,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        let settings = self.registration.client.sandbox().await?;
        let mut protected = self.protected.entries();
        if let Some(copies) = &self.git_copies {
            copies.redirect(&mut protected);
        }
        protected.extend(self.protected.unseen_trees());
        protected.extend(covers(
            &self.protected.restricted(),
            self.protected.repositories(),
            &directories.writable,
        ));
        let prepared = std::mem::take(&mut self.prepared);
        let mut spec = specification(&run.command, prepared, directories, &settings, protected)?;
        let streams = Streams::look().map_err(|error| {
            Failure::usage(format_args!("the standard streams cannot be used: {error}"))
        })?;
        spec.terminal = streams.wanted;
        let fds = streams.streams.each_ref().map(AsFd::as_fd);
        self.sandbox
            .begin(Some(&self.registration.listener), &spec, fds)?;
        // Closes the launcher's copies, so that readers of pipes see the end when the command
        // closes its copies.
        drop(streams.streams);
        let mut terminal = streams.terminal;
        let ended = self.forward_events(terminal.as_mut(), signals).await;
        // Not after an error: `finish` waits until the command has closed its ends of the relays'
        // pipes, and the command may still run.
        if ended.is_ok() {
            streams.relays.finish().await;
        }
        if let Some(terminal) = terminal {
            terminal.finish().await;
        }
        ended
    }

    /// Forwards events and signals until the command has ended, and returns its exit code. Fails if
    /// the sandbox or the appliance fails, or if a protected file is replaced or removed.
    async fn forward_events(
        &mut self,
        mut terminal: Option<&mut HostTerminal>,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        loop {
            tokio::select! {
                event = self.sandbox.next() => match event? {
                    Event::Started => {}
                    Event::Terminal(controlling) => {
                        if let Some(terminal) = &mut terminal {
                            terminal.connect(controlling).map_err(Failure::internal)?;
                        }
                    }
                    Event::Stopped => stop_ourselves(terminal.as_deref()),
                    Event::Ended(ending) => return Ok(ending.exit_code()),
                },
                signal = signals.next() => match signal {
                    SignalEvent::Size => if let Some(terminal) = &terminal {
                        terminal.resize();
                    },
                    SignalEvent::Signal { number, to } => {
                        if number == rustix::process::Signal::CONT.as_raw()
                            && let Some(terminal) = &terminal
                        {
                            terminal.resume();
                        }
                        self.sandbox.signal(number, to);
                    }
                },
                failure = lost(self.appliance.as_mut()) => return Err(failure),
                path = self.file_watch.lost() => return Err(replaced(&path)),
                _ = self.renewal.tick(), if self.appliance.is_none() => {
                    // Errors are ignored: the server may be reachable again before the lease
                    // expires. The timeout limits the delay of other events if the server hangs.
                    let renewed = timeout(RENEWAL_TIMEOUT, self.registration.renew()).await;
                    if let Ok(Ok(true)) = renewed {
                        self.sandbox.forward_to(Some(&self.registration.listener));
                    }
                }
            }
        }
    }

    /// Ends the sandbox, then the appliance or, with `--server`, the lease. Returns the report of
    /// the flows, [`Protected::changes`], and the text of [`GitCopies::take_over`]. `ended` says
    /// whether the command has ended.
    async fn end(
        self,
        ended: bool,
        is_quiet: bool,
        writable: &[PathBuf],
    ) -> (Report, Changes, String) {
        // If the command has not ended, the sandbox is killed.
        if ended {
            self.sandbox.end().await;
        } else {
            drop(self.sandbox);
        }
        // After the end of the sandbox, whose processes could still make files before.
        let changes = self.protected.changes(writable);
        // After an error, a configuration may have been replaced.
        let copies = self.git_copies.filter(|_| ended);
        let settings = copies
            .map(|copies| copies.take_over(is_quiet))
            .unwrap_or_default();
        if let Some(appliance) = self.appliance {
            let report = read_audit(&appliance.stop().await);
            return (report, changes, settings);
        }
        self.registration.end().await;
        let report = match self.watched {
            Some(watched) => watched.finish().await,
            None => Report::default(),
        };
        (report, changes, settings)
    }
}

fn replaced(path: &Path) -> Failure {
    Failure::internal(format_args!(
        "{} was replaced or removed on the host while the command ran, and so lost its \
         protection; the sandbox has ended. Look at the file before you use it",
        path.display()
    ))
}

/// Waits until the appliance ends unexpectedly. Without an appliance, waits forever.
async fn lost(appliance: Option<&mut Appliance>) -> Failure {
    match appliance {
        Some(appliance) => appliance.ended().await,
        None => pending().await,
    }
}

fn start_appliance(
    run: &Run,
    directories: &RunDirectories,
    kept: &Path,
) -> Result<Appliance, Failure> {
    let home = directories.real_home.as_deref();
    let gh = trusted_program("gh", &directories.writable);
    let logins = run.with_logins.then(|| Logins::find(home, gh.as_deref()));
    if let Some(logins) = logins.as_ref().filter(|_| !run.quiet) {
        announce(logins);
    }
    Appliance::start(run, logins.as_ref(), directories, kept)
}

/// Prints the logins that the command may use, and why others are not used.
fn announce(logins: &Logins) {
    let names = logins.names();
    let text = match names.is_empty() {
        true => "no login was found for --with-logins".to_owned(),
        false => format!(
            "the command acts with these logins, which it does not see: {}",
            names.join(", ")
        ),
    };
    for text in logins.left_out.iter().chain([&text]) {
        say(text);
    }
}

fn say(text: &str) {
    // A write error is ignored: there is no other output for the text.
    let _ = writeln!(io::stderr(), "unified-proxy: {}", printable(text));
}

/// Makes the report from the audit log of this run's appliance; empty if the log cannot be opened.
fn read_audit(path: &Path) -> Report {
    let mut report = Report::new(masked_variables());
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
