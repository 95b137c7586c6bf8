//! Child processes that serve MCP on their standard streams.

mod children;
mod e2b;
mod launch;
mod lines;
mod local;
mod running;
mod stderr;
mod view;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::BoxFuture;
use addons::mcp::Confine;
use zeroize::Zeroizing;

pub use children::{ChildPlace, Children, MAX_CHILDREN, MAX_CHILDREN_OF_LEASE, RunningChild};
pub use e2b::E2b;
pub use launch::Spawner;
use launch::StartSandbox;
pub use local::Local;
pub use running::RunningProgram;
pub use stderr::Secrets;
pub use view::Machine;

use super::{MessageMemory, MountError};
use crate::sandbox::{self, Limits};

/// Manages one process, which is started at most once.
pub trait ProcessManager: Send + Sync {
    /// Starts the process. Fails if the command cannot be run.
    fn start(&self, config: ProcessConfig) -> BoxFuture<'_, Result<(), MountError>>;

    /// Writes to the process's standard input. Not cancellation-safe: a dropped future may have
    /// written a part.
    fn write<'a>(&'a self, data: &'a [u8]) -> BoxFuture<'a, Result<(), MountError>>;

    /// Passes each line of standard output to `take`, without its line end, until the output ends
    /// or `take` returns `Break`. `take` returns how long to wait before the next line. A line that
    /// is longer than the configuration allows is an error.
    fn read_loop<'a>(&'a self, take: LineTaker<'a>) -> BoxFuture<'a, Result<(), MountError>>;

    /// Ends the process and its descendants: closes standard input, sends SIGTERM to the process
    /// after half of `limit`, and SIGKILL to all of them after `limit`. Returns once all are gone.
    fn stop(&self, limit: Duration) -> BoxFuture<'_, ()>;

    /// Waits until the process has ended, or could not be started.
    fn ended(&self) -> BoxFuture<'_, ()>;

    /// Whether the process has started and has not ended.
    fn is_running(&self) -> bool;

    /// The exit code; 128 plus the signal's number after a signal. `None` before the process has
    /// ended, or if it could not be started.
    fn exit_code(&self) -> Option<i32>;

    /// The runtime of the process.
    fn runtime(&self) -> Runtime;
}

/// Takes a line; see [`ProcessManager::read_loop`].
pub type LineTaker<'a> = &'a mut (dyn FnMut(&[u8]) -> ControlFlow<(), Duration> + Send);

/// The runtime of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// On this machine.
    Local,
    /// In an e2b sandbox.
    E2b,
}

impl Runtime {
    /// The spelling in labels and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::E2b => "e2b",
        }
    }
}

/// The configuration of a process.
#[derive(Clone)]
pub struct ProcessConfig {
    /// The server's name, for the log.
    pub server: String,
    /// What is executed.
    pub program: Program,
    /// Values that must not appear in the log, besides those of the program's `env`.
    pub secrets: Vec<Zeroizing<String>>,
    /// The path of the Unix socket through which a confined process reaches the network. If `None`,
    /// a confined process has no network.
    pub egress: Option<PathBuf>,
    /// Limit on the length of a line of its output, in bytes.
    pub longest_line: usize,
    /// The memory budget that unfinished lines of its output are charged to.
    pub memory: Arc<dyn MessageMemory>,
}

/// A program, what it may see, and its limits.
#[derive(Clone)]
pub struct Program {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables in addition to those of every child.
    pub env: Vec<(String, Zeroizing<String>)>,
    /// The working directory; the home directory if `None`.
    pub work_dir: Option<PathBuf>,
    /// Paths that the process may read, besides those of every confined process.
    pub read: Vec<PathBuf>,
    /// Paths that the process may write, besides those of every confined process.
    pub write: Vec<PathBuf>,
    /// How the process is confined.
    pub confine: Confine,
    /// Whether a confined process may make Unix sockets other than connected pairs.
    pub unix_sockets: bool,
    /// Whether the environment of a confined process names the proxy and its certificates.
    pub knows_proxy: bool,
    /// Limits besides those of every child.
    pub limits: Option<Limits>,
}

impl Program {
    /// The function that starts the first process of the program's sandbox. A program with limits
    /// is started again and again at the wish of strangers, so it must end with all its processes.
    fn first(&self) -> StartSandbox {
        match (self.confine, self.limits) {
            (Confine::Namespaces, _) => sandbox::start,
            (Confine::None, Some(_)) => sandbox::start_in_pid_namespace,
            (Confine::None, None) => sandbox::start_unconfined,
        }
    }

    fn name(&self) -> OsString {
        self.command.first().map(OsString::from).unwrap_or_default()
    }

    fn arguments(&self) -> Vec<OsString> {
        self.command.iter().skip(1).map(OsString::from).collect()
    }
}
