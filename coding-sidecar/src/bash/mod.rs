//! `/bash`: one command, its output as it comes, and its end with all descendants.

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
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use self::orphans::Supervisors;
use self::output::{Output, Source};
use self::running::Running;
use crate::access::TOKEN_VARIABLE;
use crate::connection::{Busy, Stream};

pub use self::supervisor::supervise;

/// Commands at once. Each has a supervisor with 0.4 MB of its own, four descriptors and two buffers.
pub const COMMANDS_MAX: usize = 32;
/// Bytes of a command: one less than what Linux passes to a program as one argument.
const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// The time limit of a command that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time limit that a command may name: a day.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the end of the sidecar waits for commands to be gone.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Reaches the running program even after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The body of `/bash`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BashRequest {
    /// The text for `bash -c`.
    command: String,
    /// Seconds until the command is killed; fractions are allowed.
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

/// Why a command did not start.
#[derive(Debug)]
pub enum Refused {
    /// [`COMMANDS_MAX`] run already.
    Busy,
    /// The sentence for the client.
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
    /// Commands that begin in `root` and end when `stopping` turns true.
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

    /// Starts a command for `client`, whose connection is `busy` with it. The lines of its response
    /// come out of the receiver; dropping that ends the command.
    ///
    /// # Errors
    ///
    /// Too many commands, or a request that cannot be run.
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
        // One line is in the channel, one in the making, and the rest in the pipe.
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
        let (control, theirs) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        let control = tokio::net::UnixStream::from_std(control)?;
        let mut child = Command::new(OWN_PROGRAM)
            .arg0("coding-sidecar")
            .args(["supervise", command])
            .env_remove(TOKEN_VARIABLE)
            .current_dir(&self.root)
            .stdin(OwnedFd::from(theirs))
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

    /// Waits until the last command is gone, but not forever.
    pub async fn stopped(&self) {
        let all = u32::try_from(COMMANDS_MAX).unwrap_or(u32::MAX);
        // A process that outlives its signal for so long waits for a device.
        let _ = timeout(STOP_PATIENCE, self.free.acquire_many(all)).await;
    }
}

/// The time limit of a request that can be run.
fn check(request: &BashRequest) -> Result<Duration, String> {
    let bytes = request.command.len();
    if bytes > COMMAND_BYTES_MAX {
        return Err(format!(
            "command is {bytes} bytes long, the limit is {COMMAND_BYTES_MAX}: write a script and run it"
        ));
    }
    if request.command.contains('\0') {
        return Err("command has a NUL character, which no shell can be given".to_owned());
    }
    match request.timeout_seconds {
        None => Ok(DEFAULT_TIMEOUT),
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|limit| !limit.is_zero() && *limit <= TIMEOUT_MAX)
            .ok_or_else(|| {
                format!(
                    "timeoutSeconds is {seconds}: name a number over 0, up to {}",
                    TIMEOUT_MAX.as_secs()
                )
            }),
    }
}
