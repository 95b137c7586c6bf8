//! Handle to a running sandbox, for the process that started it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::channel::{self, Channel};
use super::spec::Spec;
use super::{FORWARDER, INIT, SUPERVISOR};
use crate::exit_code as code;

/// How long [`Sandbox::end`] waits for the end of all processes. After that, a forwarder is killed;
/// a supervisor goes on killing.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Why a sandbox could not be made or was ended, with the exit code for it.
#[derive(Clone, Debug, Deserialize, Error, PartialEq, Eq, Serialize)]
#[error("{message}")]
pub struct Refused {
    pub code: u8,
    pub message: String,
}

impl Refused {
    /// Returns a function that turns the error of a step into a refusal, with the exit code of an
    /// internal error. `step` is a gerund with its object, for example "mounting its files".
    pub fn internal<E: Into<io::Error>>(step: &str) -> impl Fn(E) -> Self + Copy {
        move |error| {
            let error: io::Error = error.into();
            Self {
                code: code::SOFTWARE,
                message: format!("cannot make a sandbox: {step}: {error}"),
            }
        }
    }
}

/// A message to the forwarder.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Serve {
    /// The Unix listener to which connections are forwarded. If the first message has none, the
    /// forwarder closes its ports.
    pub(super) listener: Option<PathBuf>,
    /// [`Sandbox::host_ports`], in the first message.
    pub(super) host_ports: Vec<u16>,
}

/// A message to PID 1 or to the supervisor.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum ToPid1 {
    /// Start the command of a [`Spec`]. The message carries four descriptors: a file with the
    /// [`Spec`], and the command's standard streams.
    Start,
    Signal {
        number: i32,
        to: Signalled,
    },
}

/// The target of a signal. A supervisor ignores the target: it always signals only the command.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Signalled {
    /// Only the command, as with `kill`.
    Command,
    /// The foreground process group of the sandbox's terminal, which also gets the signal of a key
    /// such as Ctrl-C. Without a terminal, the command's process group.
    Foreground,
}

/// A message from the forwarder, PID 1 or the supervisor. A sandboxed process that took over PID 1
/// could send messages, but they would affect only the run of its own sandbox.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum SandboxMessage {
    /// Carries the descriptor of the terminal's controlling end.
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
    /// The exit code by the convention of shells: 128 plus the number of a signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Signal(number) => u8::try_from(number).unwrap_or(0).saturating_add(128),
        }
    }
}

#[derive(Debug)]
pub enum Event {
    /// The controlling end of the sandbox's pseudo-terminal; precedes [`Event::Started`].
    Terminal(OwnedFd),
    Started,
    /// The command was stopped, by a key or a signal.
    Stopped,
    /// The command ended; all other processes inside are then killed.
    Ended(Ending),
}

/// A sandbox. Dropping it kills all processes inside.
pub struct Sandbox {
    /// Ports of the host's loopback that are at the same port inside. Set them before
    /// [`Sandbox::begin`]. The proxy must permit them too.
    pub host_ports: Vec<u16>,
    /// The first process: the forwarder or the supervisor.
    forwarder: Child,
    to_forwarder: Watched,
    pid1: Watched,
}

/// The path of this program, valid also after the file was replaced.
pub const SELF_EXE: &str = "/proc/self/exe";

/// Starts a forwarder, which creates the namespaces while the caller goes on. `program` is the path
/// of this program. Must be called within a Tokio runtime. The forwarder is killed when the calling
/// thread ends.
pub fn start(program: &Path) -> Result<Sandbox, Refused> {
    start_as(program, FORWARDER, true)
}

/// Starts a supervisor instead of a forwarder: the command of the [`Spec`] runs unconfined, in the
/// machine's namespaces and file system. When the command ends, the processes that it started are
/// killed, as in a sandbox.
pub fn start_unconfined(program: &Path) -> Result<Sandbox, Refused> {
    start_as(program, SUPERVISOR, false)
}

/// Like [`start_unconfined`], in a PID namespace if this machine permits one. The kernel then kills
/// the processes, also those that no supervisor could catch. Programs that become another user
/// (setuid) may not work.
pub fn start_in_pid_namespace(program: &Path) -> Result<Sandbox, Refused> {
    start_as(program, INIT, false)
}

fn start_as(program: &Path, first: &str, is_confined: bool) -> Result<Sandbox, Refused> {
    let failed = Refused::internal::<io::Error>("starting its first process");
    let (to_forwarder, forwarder_end) = Channel::pair().map_err(failed)?;
    let (pid1, pid1_end) = Channel::pair().map_err(failed)?;
    let forwarder = Command::new(program)
        .arg0("unified-proxy")
        .arg(first)
        .env_clear()
        .current_dir("/")
        .stdin(forwarder_end.into_inner())
        .stdout(pid1_end.into_inner())
        // The terminal's signals go to the launcher, which forwards them.
        .process_group(0)
        // A supervisor is not killed: it kills the command's processes when its channels close.
        .kill_on_drop(is_confined)
        .spawn()
        .map_err(failed)?;
    Ok(Sandbox {
        host_ports: Vec::new(),
        forwarder,
        to_forwarder: Watched::new(to_forwarder).map_err(failed)?,
        pid1: Watched::new(pid1).map_err(failed)?,
    })
}

impl Sandbox {
    /// Sends the specification and the streams with which PID 1 starts the command. Connections
    /// from inside go to `listener`; without one, they are refused.
    pub fn begin(
        &self,
        listener: Option<&Path>,
        spec: &Spec,
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<(), Refused> {
        // Errors of the two sends are ignored: a process that failed has sent its refusal, which
        // `next` returns.
        self.forward_to(listener);
        let failed = Refused::internal("sending its specification");
        let spec = channel::to_memory(spec).map_err(failed)?;
        let [stdin, stdout, stderr] = streams;
        let fds = [spec.as_fd(), stdin, stdout, stderr];
        let _ = self.pid1.channel.send(&ToPid1::Start, &fds);
        Ok(())
    }

    /// Makes the forwarder connect new connections to another Unix listener. Has no effect if
    /// [`Sandbox::begin`] was called without a listener.
    pub fn forward_to(&self, listener: Option<&Path>) {
        let listener = listener.map(Path::to_owned);
        let serve = Serve {
            listener,
            host_ports: self.host_ports.clone(),
        };
        // Fails only if the forwarder has ended.
        let _ = self.to_forwarder.channel.send(&serve, &[]);
    }

    /// Sends a signal. Has no effect if the sandbox has ended.
    pub fn signal(&self, number: i32, to: Signalled) {
        let _ = self.pid1.channel.send(&ToPid1::Signal { number, to }, &[]);
    }

    /// Waits for the next event. Fails if the sandbox could not be made, or ended before its
    /// command. Cancel safe.
    pub async fn next(&mut self) -> Result<Event, Refused> {
        loop {
            let message = tokio::select! {
                biased;
                message = self.pid1.next() => message,
                message = self.to_forwarder.next() => message,
                _ = self.forwarder.wait() => None,
            };
            match message {
                Some((SandboxMessage::Terminal, fds)) => {
                    if let Some(end) = fds.into_iter().next() {
                        return Ok(Event::Terminal(end));
                    }
                }
                Some((SandboxMessage::Started, _)) => return Ok(Event::Started),
                Some((SandboxMessage::Stopped, _)) => return Ok(Event::Stopped),
                Some((SandboxMessage::Ended(ending), _)) => return Ok(Event::Ended(ending)),
                Some((SandboxMessage::Refused(refused), _)) => return Err(refused),
                None => return Err(self.ended().await),
            }
        }
    }

    /// Kills all processes inside, and waits up to `END_LIMIT` until they are gone.
    pub async fn end(self) {
        let _ = tokio::time::timeout(END_LIMIT, self.gone()).await;
    }

    /// Kills all processes inside, and waits until they are gone. The wait has no limit: a process
    /// may wait for a device, or belong to another user.
    pub async fn gone(self) {
        let Self {
            mut forwarder,
            to_forwarder,
            pid1,
            ..
        } = self;
        // The forwarder kills PID 1 and reaps it, which the kernel permits once all others inside
        // are gone. A supervisor ends after all descendants of its command.
        drop((to_forwarder, pid1));
        let _ = forwarder.wait().await;
    }

    /// The reason why the sandbox ended before its command.
    async fn ended(&mut self) -> Refused {
        // The forwarder ends right after PID 1.
        let _ = self.forwarder.wait().await;
        match self.to_forwarder.channel.try_receive() {
            Ok(Some((SandboxMessage::Refused(refused), _))) => refused,
            _ => Refused {
                code: code::SOFTWARE,
                message: "a process of the sandbox was killed; the sandbox has ended".to_owned(),
            },
        }
    }
}

/// A channel registered with the runtime.
struct Watched {
    channel: Channel,
    /// A duplicate of the channel's socket.
    readiness: UnixStream,
}

impl Watched {
    fn new(channel: Channel) -> io::Result<Self> {
        Ok(Self {
            readiness: channel.watch()?,
            channel,
        })
    }

    /// The next message; `None` if the process has closed its end or sent an invalid message.
    async fn next(&self) -> Option<(SandboxMessage, Vec<OwnedFd>)> {
        let receive = || self.channel.try_receive();
        let received = self.readiness.async_io(Interest::READABLE, receive).await;
        received.ok().flatten()
    }
}
