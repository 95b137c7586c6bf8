//! Ports: traits that give addons access to the outside. The engine implements them.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::body::BoxFuture;
use super::container::{Container, ContainerId, Source};
use super::definition::Pin;
use super::denial::Denial;
use super::effect::Effect;
use super::level::Standing;
use super::policy_input::PolicyInput;
use super::principal::System;

/// The registry cannot be read, so every flow of a container is denied. [`LeaseRecords`] and
/// [`Definitions`] also return this error if a record cannot be read or written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the registry, or a record that must survive a restart, cannot be read or written")]
pub struct Unavailable;

/// Finds leases in memory.
pub trait Containers: Send + Sync {
    /// The lease at a source. An expired lease is found until it is removed, so that the next flow
    /// is denied as expired. A deleted or replaced lease is not found.
    fn find(&self, source: &Source) -> Result<Option<Arc<Container>>, Unavailable>;

    /// Whether the registry can be read. Called in place of [`Containers::find`] for a flow whose
    /// container is known already, for example from an earlier flow of the connection.
    fn available(&self) -> bool;

    /// Ends an expired lease and removes it from memory. The lease is removed from disk later.
    fn expire(&self, container: &Arc<Container>);
}

/// Recognises the addresses of the proxy's own listeners.
pub trait OwnAddresses: Send + Sync {
    /// Whether a connection to this address would reach a listener of the proxy.
    fn is_ours(&self, address: SocketAddr) -> bool;
}

/// Sends requests of the appliance itself. Each is a flow that the chain judges and the audit
/// records. A request uses HTTP/1.1 on a new connection, with verified TLS certificates (or in
/// clear text if the chain permits that), and follows no redirect.
///
/// A request fails if it takes more than 20 s (a look-up: 8 s) or if the response body is over
/// 1 MiB. Dropping the future closes the connection and records the flow as aborted.
pub trait Outbound: Send + Sync {
    /// Sends a request of a named part of the appliance, to one of that part's own hosts. Returns
    /// the whole response, whatever its status.
    fn send<'a>(
        &'a self,
        principal: &'a Arc<System>,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>>;

    /// Sends a look-up: a request whose response an addon needs before it can judge a request of
    /// the container. The chain treats the look-up as a request of the container: the same policy,
    /// budgets and credentials apply.
    fn look_up<'a>(
        &'a self,
        container: &'a Arc<Container>,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'a, Result<http::Response<Bytes>, OutboundError>>;
}

/// Why [`Outbound`] has no response.
#[derive(Debug, Error)]
pub enum OutboundError {
    /// The first configuration is not in force yet.
    #[error("the proxy is still starting")]
    Starting,
    /// The request's target is not an absolute HTTP URL.
    #[error("the URL must begin with https:// or http:// and name a host")]
    NoUrl,
    /// The chain denied the request, or the request failed.
    #[error(transparent)]
    Denied(#[from] Denial),
}

/// Evaluates the operator's policies on MCP messages: Rego bundles, on threads of the evaluator, or
/// one command, which counts as a bundle.
pub trait Evaluator: Send + Sync {
    /// Whether any bundle judges messages of this method.
    fn covers(&self, method: &str) -> bool;

    /// Evaluates the bundles that judge this method, in the order of `mcp.yaml`. Skips the first
    /// `evaluation.decided` bundles, and stops after the first bundle that redacts.
    fn evaluate<'a>(
        &'a self,
        method: &'a str,
        evaluation: Evaluation,
    ) -> BoxFuture<'a, Result<Decisions, EvaluatorError>>;
}

/// One evaluation of the bundles.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The container whose message is judged. Containers take turns.
    pub container: ContainerId,
    /// The input document of the policies.
    pub input: PolicyInput,
    /// Number of bundles that have decided on this message already.
    pub decided: usize,
    /// The time by which all bundles must have decided. `None`: no deadline, since the time would
    /// be beyond the range of `Instant`.
    pub ends: Option<Instant>,
}

/// The decisions of consecutive bundles.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// One decision of each evaluated bundle. Only the last one may redact.
    pub all: Vec<Decision>,
    /// Whether bundles are left. They must be evaluated on the redacted message.
    pub more: bool,
}

/// The decision of one bundle.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The bundle's id.
    pub bundle: Arc<str>,
    /// SHA-256 of the bundle's source and entrypoint. A person's approval under one revision does
    /// not hold under another.
    pub revision: [u8; 32],
    /// What happens to the message.
    pub effect: Effect,
    /// The reason that the policy gave.
    pub reason: Option<Box<str>>,
    /// Replaces the message's arguments, params, result or error. Set exactly if the effect is
    /// [`Effect::Redact`].
    pub modified: Option<Box<RawValue>>,
    /// The policy's `metadata`, if it is a short object.
    pub metadata: Option<Box<RawValue>>,
    /// Whether the bundle reads more of its input than the method, the phase and the result: its
    /// answer may depend on the tool or on the agent.
    pub depends_on_call: bool,
}

/// Why a policy has no decision.
#[derive(Clone, Debug, Error)]
pub enum EvaluatorError {
    /// The policy failed: a conflict, a wrong type, an unknown decision, or an input that is too
    /// large.
    #[error("{0}")]
    Failed(String),
    /// The policy did not decide within `policies.evaluator.timeout`.
    #[error("the policy did not decide within policies.evaluator.timeout")]
    TimedOut,
    /// The queue of evaluations is full.
    #[error("too many policy evaluations are waiting: try again")]
    Busy,
    /// A bundle could not be loaded.
    #[error("{0}")]
    Unavailable(String),
}

/// Facts about a lease that must survive a restart. Once a method's future returns `Ok`, the fact
/// is on disk.
pub trait LeaseRecords: Send + Sync {
    /// Raises the security level of a lease and sets its abort latch: see [`Container::reach`].
    fn reach<'a>(
        &'a self,
        container: &'a Arc<Container>,
        reached: Standing,
    ) -> BoxFuture<'a, Result<(), Unavailable>>;
}

/// Remembers the definitions of tools, to detect changes.
pub trait Definitions: Send + Sync {
    /// Compares the definitions of a server's tools with the accepted ones. Returns a pin for each, in
    /// the same order. The first digest of a tool is accepted, and is on disk before the future is
    /// ready. A new tool beyond the engine's limit for a server counts as changed.
    fn pin<'a>(
        &'a self,
        server: &'a str,
        tools: Vec<ListedDefinition>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>>;
}

/// The definition of a tool as its server lists it.
#[derive(Clone, Debug)]
pub struct ListedDefinition {
    /// The server's own name for the tool.
    pub tool: Arc<str>,
    /// The SHA-256 of `text`.
    pub digest: [u8; 32],
    /// The members that are compared, in canonical form.
    pub text: Box<str>,
}

/// Knows the accepted definitions of tools.
pub trait AcceptedDefinitions: Send + Sync {
    /// The accepted definition of a tool, in canonical form; `None` if it is not kept.
    fn accepted<'a>(
        &'a self,
        server: &'a str,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<str>>, Unavailable>>;
}

/// Keeps no accepted definition.
pub struct NoDefinitions;

impl AcceptedDefinitions for NoDefinitions {
    fn accepted<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<str>>, Unavailable>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// A secret whose value may change while the proxy runs. It has no `Debug` on purpose.
pub trait SecretSource: Send + Sync {
    /// The current value. The error describes a problem of the source and never contains the value.
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String>;

    /// Changes whenever the value that [`SecretSource::read`] returns may have changed. Callers
    /// compare it before each use of data derived from the value.
    fn version(&self) -> u64;
}

/// Files that hold secrets. Every method may block on the disk; async code calls them through
/// `run_blocking` of [`Tasks`].
pub trait SecretFiles: Send + Sync {
    /// The file's text as a secret, without white space at its ends. The source reads the file
    /// again within a second of a change.
    fn source(&self, path: &Path) -> Arc<dyn SecretSource>;

    /// Checks that the file can be opened and is a regular file.
    fn check(&self, path: &Path) -> io::Result<()>;

    /// The path with symbolic links resolved, so that all names of one file are equal; `path`
    /// unchanged if it cannot be resolved.
    fn real_path(&self, path: &Path) -> PathBuf;

    /// Reads the whole file; `None` if the file still has the version `known`. Fails if it is not a
    /// regular file or is larger than 1 MiB.
    fn read(&self, path: &Path, known: Option<&FileVersion>) -> io::Result<Option<SecretText>>;

    /// Locks the file against other processes; waits for up to 30 s. The lock is held on a separate
    /// lock file, since every replacement of the file is a new inode. The error names the lock
    /// file.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, String>;

    /// Creates the temporary file that will replace `path`. Call this before a one-time refresh
    /// token is spent: without the file, the token that succeeds it could not be stored.
    fn replace(&self, path: &Path) -> io::Result<Box<dyn Replacement>>;
}

/// The version of a file: differs after each write or replacement.
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
    /// The version of the file right before it was read. If the file changed during the read, the
    /// next read finds another version.
    pub version: FileVersion,
    /// The content.
    pub text: Zeroizing<Vec<u8>>,
}

/// A lock that is held until it is dropped, or the process ends.
pub trait FileLock: Send {}

/// A temporary file that will replace another file; deleted if it is dropped without
/// [`Replacement::commit`].
pub trait Replacement: Send {
    /// Writes the text to the temporary file and flushes it to disk. The temporary file gets the
    /// mode of the file to replace and, if the process may change owners, the owner of that file.
    /// Blocks.
    fn fill(&mut self, text: &[u8]) -> io::Result<()>;

    /// Replaces the file atomically and returns its new version. Blocks.
    fn commit(self: Box<Self>) -> io::Result<FileVersion>;
}

/// The ports of addons that send requests of the appliance itself, such as token refreshes.
#[derive(Clone)]
pub struct SystemPorts {
    /// Sends the requests.
    pub outbound: Arc<dyn Outbound>,
    /// Reads and replaces the files.
    pub files: Arc<dyn SecretFiles>,
    /// Runs blocking work, and work that outlives a request.
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
    /// Runs a future to its end, also when the receiver is dropped. The receiver returns an error
    /// if the future panicked.
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

    /// Runs a closure to its end on a thread that may block, also when the receiver is dropped. The
    /// receiver returns an error if the closure panicked.
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
