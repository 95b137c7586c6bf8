//! A running sandbox, as the process that started it sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Child;

use super::channel::{self, Channel};
use super::spec::Spec;
use super::{FORWARDER, SUPERVISOR};
use crate::exit_code as code;

/// How long the forwarder may take to end after its PID 1.
const LAST: Duration = Duration::from_millis(500);
/// How long a supervisor may take to end what its command left.
const LAST_OF_SUPERVISOR: Duration = Duration::from_secs(5);

/// Why there is no sandbox: with the exit code for it.
#[derive(Clone, Debug, Deserialize, Error, PartialEq, Eq, Serialize)]
#[error("{message}")]
pub struct Refused {
    pub code: u8,
    pub message: String,
}

impl Refused {
    pub fn internal(what: &str, error: &io::Error) -> Self {
        Self {
            code: code::SOFTWARE,
            message: format!("cannot make a sandbox: {what}: {error}"),
        }
    }
}

/// What the forwarder is told.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum ToForwarder {
    /// Carry bytes to and from this Unix listener; without one, nothing leads out.
    Serve {
        listener: Option<std::path::PathBuf>,
    },
}

/// What PID 1 is told.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum ToPid1 {
    /// Build and start what the first descriptor says, with the others as the command's streams.
    Start,
    Signal {
        number: i32,
        to: Signalled,
    },
}

/// Whom a signal goes to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Signalled {
    /// The command alone, as `kill` does it.
    Command,
    /// The process group in the foreground of the sandbox's terminal, as a key does it.
    Foreground,
}

/// What forwarder and PID 1 say. What a sandboxed process could at worst make PID 1 say ends or
/// stops its own sandbox, no more.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Said {
    /// The controlling end of the terminal is the descriptor.
    Terminal,
    Started,
    Stopped,
    Ended(Ending),
    Refused(Refused),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Ending {
    Exit(u8),
    Signal(i32),
}

impl Ending {
    /// The exit code as shells count it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(number) => u8::try_from(number).unwrap_or(0).saturating_add(128),
        }
    }
}

/// What happens to a sandbox.
#[derive(Debug)]
pub enum Event {
    /// The controlling end of its pseudo-terminal; before [`Event::Started`].
    Terminal(OwnedFd),
    Started,
    /// The command was stopped, by a key or a signal.
    Stopped,
    /// The command ended; everything else inside ends with it.
    Ended(Ending),
}

/// A sandbox. Dropping it ends everything inside.
pub struct Sandbox {
    /// The first process.
    forwarder: Child,
    is_confined: bool,
    to_forwarder: Watched,
    pid1: Watched,
}

/// This program, also after it was replaced on disk.
pub const OURSELVES: &str = "/proc/self/exe";

/// Starts a forwarder, which makes the namespaces while the caller goes on: `program` is this
/// program. Needs a runtime. The forwarder ends with the thread that calls this.
pub fn start(program: &Path) -> Result<Sandbox, Refused> {
    start_as(program, FORWARDER, true)
}

/// Starts a supervisor in the place of a forwarder: the command of the [`Spec`] runs in the
/// namespaces of the machine, with its files, and still ends with all that it started.
pub fn start_unconfined(program: &Path) -> Result<Sandbox, Refused> {
    start_as(program, SUPERVISOR, false)
}

fn start_as(program: &Path, first: &str, is_confined: bool) -> Result<Sandbox, Refused> {
    let failed = |error: io::Error| Refused::internal("starting its first process", &error);
    let (to_forwarder, forwarder_end) = Channel::pair().map_err(failed)?;
    let (pid1, pid1_end) = Channel::pair().map_err(failed)?;
    let mut command = Command::new(program);
    command
        .arg0("unified-proxy")
        .arg(first)
        .env_clear()
        .current_dir("/")
        .stdin(forwarder_end.into_inner())
        .stdout(pid1_end.into_inner())
        // A key that interrupts is ours to pass on.
        .process_group(0);
    let mut command = tokio::process::Command::from(command);
    // A supervisor ends what it supervises when its channels close.
    let forwarder = command.kill_on_drop(is_confined).spawn().map_err(failed)?;
    Ok(Sandbox {
        forwarder,
        is_confined,
        to_forwarder: Watched::new(to_forwarder).map_err(failed)?,
        pid1: Watched::new(pid1).map_err(failed)?,
    })
}

impl Sandbox {
    /// Makes the sandbox and starts the command in it, with these streams; its way out is the
    /// Unix listener, if there is one.
    pub fn begin(
        &self,
        listener: Option<&Path>,
        spec: &Spec,
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<(), Refused> {
        let failed = |error: io::Error| Refused::internal("telling its processes", &error);
        // A process that could not start has said why: that is read later.
        self.serve(listener);
        let spec = channel::to_memory(spec).map_err(failed)?;
        let [stdin, stdout, stderr] = streams;
        let fds = [spec.as_fd(), stdin, stdout, stderr];
        let _ = self.pid1.channel.send(&ToPid1::Start, &fds);
        Ok(())
    }

    /// Makes another Unix listener the way out, for connections from now on.
    pub fn lead_to(&self, listener: &Path) {
        self.serve(Some(listener));
    }

    fn serve(&self, listener: Option<&Path>) {
        let listener = listener.map(Path::to_owned);
        let serve = ToForwarder::Serve { listener };
        // A forwarder that has ended has no connections.
        let _ = self.to_forwarder.channel.send(&serve, &[]);
    }

    /// Passes a signal on. One that cannot be delivered is for a sandbox that has ended.
    pub fn signal(&self, number: i32, to: Signalled) {
        let _ = self.pid1.channel.send(&ToPid1::Signal { number, to }, &[]);
    }

    /// Waits for what happens next. Cancellation-safe.
    pub async fn next(&mut self) -> Result<Event, Refused> {
        loop {
            let said = tokio::select! {
                biased;
                said = self.pid1.next() => said,
                said = self.to_forwarder.next() => said,
                _ = self.forwarder.wait() => None,
            };
            match said {
                Some((Said::Terminal, fds)) => {
                    if let Some(end) = fds.into_iter().next() {
                        return Ok(Event::Terminal(end));
                    }
                }
                Some((Said::Started, _)) => return Ok(Event::Started),
                Some((Said::Stopped, _)) => return Ok(Event::Stopped),
                Some((Said::Ended(ending), _)) => return Ok(Event::Ended(ending)),
                Some((Said::Refused(refused), _)) => return Err(refused),
                None => return Err(self.ended().await),
            }
        }
    }
}

impl Sandbox {
    /// Waits until the last process outside has ended after the command, or ends it.
    pub async fn end(mut self) {
        // It reaps PID 1, which has nothing more to do.
        let last = if self.is_confined {
            LAST
        } else {
            LAST_OF_SUPERVISOR
        };
        let _ = tokio::time::timeout(last, self.forwarder.wait()).await;
    }

    /// Kills everything inside, and waits until it is gone.
    pub async fn kill(self) {
        let Self {
            mut forwarder,
            is_confined,
            to_forwarder,
            pid1,
        } = self;
        drop((to_forwarder, pid1));
        if is_confined {
            // One that has ended cannot be killed.
            let _ = forwarder.start_kill();
        }
        let _ = tokio::time::timeout(LAST_OF_SUPERVISOR, forwarder.wait()).await;
    }

    /// Why the sandbox is gone although its command did not end.
    async fn ended(&mut self) -> Refused {
        // It ends at once when PID 1 has ended.
        let _ = self.forwarder.wait().await;
        match self.to_forwarder.channel.try_receive() {
            Ok(Some((Said::Refused(refused), _))) => refused,
            _ => Refused {
                code: code::SOFTWARE,
                message: "a process of the sandbox was killed; the sandbox has ended".to_owned(),
            },
        }
    }
}

/// A channel that the runtime watches.
struct Watched {
    channel: Channel,
    /// The same socket.
    readiness: UnixStream,
}

impl Watched {
    fn new(channel: Channel) -> io::Result<Self> {
        Ok(Self {
            readiness: channel.watch()?,
            channel,
        })
    }

    /// The next message; `None` when the process has closed its end, or sends nonsense.
    async fn next(&self) -> Option<(Said, Vec<OwnedFd>)> {
        let receive = || self.channel.try_receive();
        let received = self.readiness.async_io(Interest::READABLE, receive).await;
        received.ok().flatten()
    }
}
