//! The servers behind the gateway.

use std::sync::Arc;

use addons::contract::{BoxFuture, CallPermit, Code, Container, Denial};
use serde_json::value::RawValue;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::event::Events;
use super::message::Outcome;
use super::version::Version;

/// A session with a server: of one lease (or shared), in one revision, with the capabilities of
/// one kind of client.
pub trait MountSession: Send + Sync {
    /// The revision that was agreed on.
    fn version(&self) -> Version;

    /// What the server said of itself.
    fn described(&self) -> &Described;

    /// Sends a request and awaits its answer. Messages of the server that belong to this request
    /// go to `events`. Dropping the future cancels the request at the server.
    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>>;

    /// Sends a notification.
    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>>;

    /// Cancelled when the session has ended, whoever ended it.
    fn ended(&self) -> &CancellationToken;
}

/// How sessions with one server are begun.
pub trait Transport: Send + Sync {
    /// Begins a session: connects or starts the server, and shakes hands in the client's era
    /// where the server speaks it, else in the other one.
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>>;
}

/// What a session is begun with.
#[derive(Clone)]
pub struct Opening {
    /// The lease that the session belongs to; `None` for one that all containers share.
    pub container: Option<Arc<Container>>,
    /// The client's revision.
    pub version: Version,
    /// What the client can do, without `tasks`.
    pub capabilities: Arc<RawValue>,
    /// Takes the server's messages that belong to no request.
    pub unsolicited: Events,
}

/// What a server said of itself, as raw JSON. `tasks` is removed from the capabilities.
#[derive(Clone, Debug)]
pub struct Described {
    /// What it can do.
    pub capabilities: Box<RawValue>,
    /// Its name and version.
    pub server_info: Option<Box<RawValue>>,
    /// What it tells the model.
    pub instructions: Option<String>,
}

/// Why a server did not answer.
#[derive(Clone, Debug, Error)]
pub enum MountError {
    /// It could not be started or reached.
    #[error("{0}")]
    CannotStart(String),
    /// It ended while the request was under way.
    #[error("the server ended{}", .exit.map(|code| format!(" with exit code {code}")).unwrap_or_default())]
    Died {
        /// Its exit code, if it is a process that exited.
        exit: Option<i32>,
    },
    /// The request could not be written to it.
    #[error("the request could not be written: {0}")]
    Write(String),
    /// It did not answer within its `timeout`.
    #[error("the server did not answer in time")]
    TimedOut,
    /// It runs where this version starts nothing.
    #[error("{0}")]
    NotImplemented(String),
    /// It sent what is no MCP.
    #[error("{0}")]
    Protocol(String),
    /// The chain denied the mount's own request.
    #[error("{0}")]
    Denied(Denial),
}

impl MountError {
    /// What the client is told.
    pub fn into_denial(self, server: &str) -> Denial {
        let code = match &self {
            Self::Denied(denial) => return denial.clone(),
            Self::CannotStart(_) | Self::Died { .. } => Code::ToolUnavailable,
            Self::Write(_) => Code::InternalError,
            Self::TimedOut => Code::ToolTimeout,
            Self::NotImplemented(_) => Code::NotImplemented,
            Self::Protocol(_) => Code::UpstreamUnreachable,
        };
        Denial::new(code, format!("{server}: {self}")).with("server", server)
    }
}
