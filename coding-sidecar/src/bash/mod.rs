//! `/bash`: runs a command, streams its output, and ends the command with all its descendants.

mod children;
mod orphans;
mod output;
mod running;
mod supervisor;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Pid;
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::time::{Instant, timeout};

use self::orphans::Supervisors;
use self::output::{Output, Source};
use self::running::Running;
use crate::access::TOKEN_VARIABLE;
use crate::connection::{Busy, Stream};

pub use self::supervisor::supervise;

/// The most concurrent commands; further commands are refused. Each has a supervisor process of
/// 0.4 MB, four descriptors and two buffers of 16 KiB.
pub const COMMANDS_MAX: usize = 32;
/// The most bytes of a command: Linux limits one argument of a program to 128 KiB, including the
/// final NUL.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// The time limit of a command whose request has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time limit that a request may set: a day.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The most time that the sidecar waits for its commands to end, after a signal or after it has
/// evicted all connections.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The path of this program, which is valid even after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The body of `/bash`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BashRequest {
    /// The argument of `bash -c`.
    command: String,
    /// The time after which the command is killed, in seconds; fractions are allowed.
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

/// The reason why a command was not started.
#[derive(Debug)]
pub enum Refused {
    /// [`COMMANDS_MAX`] commands are running.
    Busy,
    /// The request is invalid or the supervisor cannot be started. The text is for the client.
    Failed(String),
}

/// Starts commands, and bounds their number.
pub struct Commands {
    root: PathBuf,
    free: Arc<Semaphore>,
    supervisors: Arc<Supervisors>,
    stopping: watch::Receiver<bool>,
}

impl Commands {
    /// Prepares to start commands with the working directory `root`. The commands end when
    /// `stopping` becomes true.
    ///
    /// # Errors
    ///
    /// As [`Supervisors::watch`].
    pub fn new(root: PathBuf, stopping: watch::Receiver<bool>) -> io::Result<Self> {
        Ok(Self {
            root,
            free: Arc::new(Semaphore::new(COMMANDS_MAX)),
            supervisors: Supervisors::watch()?,
            stopping,
        })
    }

    /// Starts a command for `client`. The returned receiver yields the lines of the response;
    /// dropping it ends the command. `busy` is kept until the command has ended.
    ///
    /// # Errors
    ///
    /// Too many commands run, the request is invalid, or the supervisor cannot be started.
    pub fn start(
        &self,
        request: BashRequest,
        client: Arc<Stream>,
        busy: Busy,
    ) -> Result<mpsc::Receiver<Bytes>, Refused> {
        let time_limit = check(&request).map_err(Refused::Failed)?;
        let Ok(place) = self.free.clone().try_acquire_owned() else {
            return Err(Refused::Busy);
        };
        // Room for one line. Further output stays in the pipe; the command waits when the pipe is
        // full.
        let (lines, response) = mpsc::channel(1);
        let running = self
            .spawn(&request.command, lines)
            .map_err(|error| Refused::Failed(format!("cannot start the command: {error}")))?;
        let deadline = Instant::now() + time_limit;
        let stopping = self.stopping.clone();
        tokio::spawn(async move {
            running.run(deadline, &client, stopping).await;
            drop((busy, place));
        });
        Ok(response)
    }

    fn spawn(&self, command: &str, lines: mpsc::Sender<Bytes>) -> io::Result<Running> {
        let (control, supervisor_end) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        let control = tokio::net::UnixStream::from_std(control)?;
        let mut child = Command::new(OWN_PROGRAM)
            .arg0("coding-sidecar")
            .args(["supervise", command])
            .env_remove(TOKEN_VARIABLE)
            .current_dir(&self.root)
            .stdin(OwnedFd::from(supervisor_end))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (Some(id), Some(stdout), Some(stderr)) = (id, child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("the supervisor has no id or no output"));
        };
        self.supervisors.add(id);
        Ok(Running {
            id,
            started: children::started(id).unwrap_or(0),
            child,
            control,
            stdout: Output::new(stdout, Source::Stdout),
            stderr: Output::new(stderr, Source::Stderr),
            lines,
            supervisors: self.supervisors.clone(),
        })
    }

    /// Waits until all commands have ended, for at most [`STOP_TIMEOUT`]. New commands are refused
    /// until the returned permit is dropped.
    pub async fn stopped(&self) -> Option<SemaphorePermit<'_>> {
        let all = u32::try_from(COMMANDS_MAX).unwrap_or(u32::MAX);
        // Times out if SIGKILL did not end a process, for example one that waits for a device.
        let acquired = timeout(STOP_TIMEOUT, self.free.acquire_many(all)).await;
        acquired.ok()?.ok()
    }
}

/// Checks a request and returns its time limit.
fn check(request: &BashRequest) -> Result<Duration, String> {
    let bytes = request.command.len();
    if bytes > COMMAND_BYTES_MAX {
        return Err(format!(
            "command is {bytes} bytes long, the limit is {COMMAND_BYTES_MAX}: write a script and run it"
        ));
    }
    if request.command.contains('\0') {
        return Err("command has a NUL character, which an argument cannot contain".to_owned());
    }
    match request.timeout_seconds {
        None => Ok(DEFAULT_TIMEOUT),
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|limit| !limit.is_zero() && *limit <= TIMEOUT_MAX)
            .ok_or_else(|| {
                format!(
                    "timeoutSeconds is {seconds}: set a number over 0 and up to {}",
                    TIMEOUT_MAX.as_secs()
                )
            }),
    }
}
