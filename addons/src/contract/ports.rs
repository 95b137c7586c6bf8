//! What addons need from outside, as traits that the engine implements.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::body::BoxFuture;
use super::container::{Container, Source};
use super::denial::Denial;
use super::flow::Flow;
use super::level::Level;
use super::mcp::{Frame, Pin};
use super::principal::System;

/// The registry cannot be read; every flow is denied until it can.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the registry cannot be read")]
pub struct Unavailable;

/// Finds the lease at a source. Reads memory only.
pub trait Containers: Send + Sync {
    /// The lease at a source. A lease whose time is over is still found, so that its next flow
    /// can be told why it is denied; one that was deleted or replaced is not.
    fn find(&self, source: &Source) -> Result<Option<Arc<Container>>, Unavailable>;

    /// Whether the registry can be read at all: asked on every request of a known connection.
    fn available(&self) -> bool;

    /// Removes a lease whose time is over. Returns at once; the store follows.
    fn expire(&self, container: &Arc<Container>);
}

/// Tells our own listeners from the rest of the world.
pub trait OwnAddresses: Send + Sync {
    /// Whether connecting there would reach one of our own listeners.
    fn is_ours(&self, address: SocketAddr) -> bool;
}

/// Sends requests that no client sent. Each is a flow of its own that passes the chain and the
/// audit: HTTP/1.1, TLS certificates verified, no redirect followed, one connection per request.
///
/// The engine bounds time and size, and a response beyond either is an error. Dropping the future
/// closes the connection and records the flow as aborted.
pub trait Outbound: Send + Sync {
    /// Sends a request of a named part of the appliance, to one of that part's own hosts. Returns
    /// the whole response, whatever its status.
    fn send<'a>(
        &'a self,
        principal: &'a Arc<System>,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>>;

    /// Sends a request that an addon needs answered before it can judge one of the container's.
    /// The chain treats it as the container's own: same policy, budgets and credentials.
    fn look_up<'a>(
        &'a self,
        container: &'a Arc<Container>,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>>;
}

/// Why [`Outbound`] has no response.
#[derive(Debug, Error)]
pub enum OutboundError {
    /// Asked before the first configuration was in force.
    #[error("the proxy is still starting")]
    Starting,
    /// The request's target is not an absolute HTTP URL.
    #[error("only https:// and http:// URLs are asked")]
    NoUrl,
    /// Denied by the chain, or failed on the way.
    #[error("{0}")]
    Denied(Denial),
}

impl From<Denial> for OutboundError {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

/// Asks the operator's policies about MCP messages. Evaluation happens on threads of its own.
pub trait Evaluator: Send + Sync {
    /// Whether any bundle is for messages of this method.
    fn asks(&self, method: &str) -> bool;

    /// Whether a response may be decided otherwise than its request: some bundle for this method
    /// reads more than what the inputs of both have in common, or what may change meanwhile.
    fn reads_responses(&self, method: &str) -> bool;

    /// Asks every bundle that is for this method, in the order of the file. `input` is a JSON
    /// text.
    fn evaluate<'a>(
        &'a self,
        method: &'a str,
        input: String,
    ) -> BoxFuture<'a, Result<Vec<Decision>, EvaluatorError>>;
}

/// What one bundle decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The bundle's id.
    pub bundle: Arc<str>,
    /// What is to happen.
    pub effect: Effect,
    /// Why, in the policy's words.
    pub reason: Option<Box<str>>,
}

/// What a policy wants to happen to a message.
#[derive(Clone, Debug)]
pub enum Effect {
    /// It passes.
    Allow,
    /// It passes with this in the place of the arguments or the result.
    Redact(Box<RawValue>),
    /// A person decides.
    Ask,
    /// It is denied.
    DenyContinue,
    /// It is denied, and so is every later call of the container.
    DenyAbort,
}

/// Why there is no decision.
#[derive(Clone, Debug, Error)]
pub enum EvaluatorError {
    /// The policy failed: a conflict, a wrong type, an unknown decision.
    #[error("{0}")]
    Failed(String),
    /// It did not answer within `policies.evaluator.timeout`.
    #[error("the policy did not answer in time")]
    TimedOut,
    /// Too many evaluations wait already.
    #[error("too many evaluations wait")]
    Busy,
    /// A bundle could not be loaded.
    #[error("{0}")]
    Unavailable(String),
}

/// Records about a lease that must survive a restart. Each is on disk before the future is done.
pub trait LeaseRecords: Send + Sync {
    /// Raises the security level of a lease; it is never lowered by this.
    fn raise_level<'a>(
        &'a self,
        container: &'a Arc<Container>,
        level: Level,
    ) -> BoxFuture<'a, Result<(), Unavailable>>;

    /// Has every further tool call of the lease denied until an operator resets it.
    fn latch<'a>(&'a self, container: &'a Arc<Container>)
    -> BoxFuture<'a, Result<(), Unavailable>>;
}

/// Remembers the definitions of tools, so that a change is noticed.
pub trait Definitions: Send + Sync {
    /// Compares the digests of a server's tools with the accepted ones, in the order given. The
    /// first digest of a tool is accepted, and on disk before the future is done.
    fn pin<'a>(
        &'a self,
        server: &'a str,
        tools: Vec<(Arc<str>, [u8; 32])>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>>;
}

/// Asks people.
pub trait Approvals: Send + Sync {
    /// Asks whether a tool call may be made, and waits for the answer.
    fn ask<'a>(&'a self, flow: &'a Flow, frame: &'a Frame) -> BoxFuture<'a, Answered>;
}

/// What a person answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The call may be made, once.
    Approved,
    /// It may not.
    Rejected,
    /// There is no answer: no approver is available, or the time was over.
    Open,
}

/// A secret whose value may change while we run. It has no `Debug` on purpose.
pub trait SecretSource: Send + Sync {
    /// The current value; an error says what is wrong with the source, never the value.
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String>;

    /// Changes whenever the value that [`SecretSource::read`] returns may have changed. Asked
    /// before each use of something derived from the value.
    fn version(&self) -> u64;
}

/// Files that hold secrets. Every method may block for as long as the disk does; where a task
/// must not block, call it through `run_blocking` of [`Tasks`].
pub trait SecretFiles: Send + Sync {
    /// The file's text as a secret, trimmed, read again within a second of a change.
    fn source(&self, path: &Path) -> Arc<dyn SecretSource>;

    /// Whether the file can be opened and is a regular file.
    fn check(&self, path: &Path) -> io::Result<()>;

    /// The path without links, so that all names of one file compare equal; `path` itself where
    /// there is no such file.
    fn real_path(&self, path: &Path) -> PathBuf;

    /// Reads the whole file; `None` while it is still the version `known`.
    fn read(&self, path: &Path, known: Option<&FileVersion>) -> io::Result<Option<SecretText>>;

    /// Locks the file against other processes that share it, by a lock beside it, since every
    /// replacement is a new file. Waits up to 30 s; the error names the file.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, String>;

    /// Creates the file that will replace `path`. An error says why it cannot be replaced, before
    /// anything was spent that would have to be stored there.
    fn replace(&self, path: &Path) -> io::Result<Box<dyn Replacement>>;
}

/// What changes when a file is written or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// The inode's number.
    pub inode: u64,
    /// The time of the last change of content or metadata: seconds and nanoseconds.
    pub changed: (i64, i64),
    /// The length in bytes.
    pub length: u64,
}

/// The content of a file, and its version. It has no `Debug` on purpose.
pub struct SecretText {
    /// The version that the text was read from, or an older one.
    pub version: FileVersion,
    /// The content.
    pub text: Zeroizing<Vec<u8>>,
}

/// A lock that is held until it is dropped, or the process ends.
pub trait FileLock: Send {}

/// A file on its way to replace another one. Dropped before [`Replacement::commit`], it leaves no
/// trace.
pub trait Replacement: Send {
    /// Writes the text to disk, with the mode of the replaced file, and with its owner where the
    /// process may give files away. The replaced file is still as it was. Blocks.
    fn fill(&mut self, text: &[u8]) -> io::Result<()>;

    /// Takes the other file's place atomically and returns the new version. Blocks.
    fn commit(self: Box<Self>) -> io::Result<FileVersion>;
}

/// The ports of addons that do work of their own, as named parts of the appliance.
#[derive(Clone)]
pub struct SystemPorts {
    /// Sends its requests.
    pub outbound: Arc<dyn Outbound>,
    /// Reads and writes its files.
    pub files: Arc<dyn SecretFiles>,
    /// Runs its work.
    pub tasks: Arc<dyn Tasks>,
}

/// Runs work that outlives the request that began it, or that may block a thread.
pub trait Tasks: Send + Sync {
    /// Runs a future to its end.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs a closure to its end, on a thread that may block.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>);
}

impl dyn Tasks {
    /// Runs a future to its end, also when the receiver is dropped. The receiver fails where the
    /// future panicked.
    pub fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        self.spawn(Box::pin(async move {
            // Fails when the receiver was dropped.
            let _ = sender.send(task.await);
        }));
        receiver
    }

    /// The same for a closure that may block.
    pub fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        self.spawn_blocking(Box::new(move || {
            let _ = sender.send(work());
        }));
        receiver
    }
}
