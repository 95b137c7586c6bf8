//! The servers behind the gateway.
//!
//! [`Mounts`] has a [`Mount`] for each server of `mcp.yaml`. A mount opens sessions when they are
//! asked for, pools them by lease, revision and capabilities of the client, and opens another one
//! in the place of one that ended, at the next request and after a pause that grows with each
//! failure. Each open session has a [`Catalog`]: what its server lists, fetched when it is first
//! asked for. The last list that was read stays with lease and mount when the session ends
//! ([`Mount::known`]).
//!
//! [`Mounts::changes`] tells a container's clients when lists may differ. What a server sends
//! besides that belongs to no request goes to [`Unsolicited`].

mod cache;
mod catalog;
mod changes;
mod coding;
mod dropped;
mod error;
mod handshake;
mod health;
mod http;
mod known;
mod meta;
mod mount;
mod own_client;
mod pages;
mod pool;
mod pooled;
mod ports;
mod process;
mod related;
mod room;
mod sessions;
mod stdio;
mod tools;
mod transports;
mod uri_template;
mod wanted;
mod way_out;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, Code, Container, Denial, Fault, Stage};
use serde_json::value::RawValue;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::event::{EVENT_QUEUE, Event, Events};
use super::message::Outcome;
use super::version::{Era, Version};
use own_client::own_client;

pub use catalog::Catalog;
pub use changes::{List, ListChanges};
pub use coding::CodingTransport;
pub use dropped::Dropped;
pub use health::{MountHealth, MountState};
pub use http::{
    EventReader, HttpParts, HttpTransport, StreamEvent, add_param_fields, request_fields,
};
pub use known::{Entry, Known};
pub use mount::Mount;
pub use pool::Mounts;
pub use pooled::{MAX_CALLS, Pooled};
pub use ports::{CurrentChain, MountPorts, Mounted, Origin, Transports, Unsolicited};
pub use process::{
    Children, E2b, LineTaker, Local, MAX_CHILDREN, MAX_CHILDREN_OF_LEASE, Machine, ProcessConfig,
    ProcessManager, Runtime, Spawner,
};
pub use room::MessageMemory;
pub use sessions::MAX_SESSIONS;
pub use stdio::{
    CurrentLimits, MakeProcess, MessageLimits, OpenMemory, StdioPorts, StdioTransport,
};
pub use transports::{ServerTransports, process_manager};
pub use way_out::{OpenWayOut, WayOut};

/// A session with a server: of one lease (or shared), in one revision, with the capabilities of
/// one kind of client.
pub trait MountSession: Send + Sync {
    /// The revision that was agreed on.
    fn version(&self) -> Version;

    /// How the server described itself.
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

    /// Checks a tool that the server lists. One that breaks a rule of the transport is left out of
    /// every list; the error says which rule.
    fn check_definition(&self, _tool: &RawValue) -> Result<(), String> {
        Ok(())
    }

    /// Whether its tools are part of this program: their definitions change with it alone, so they
    /// are not pinned.
    fn is_built_in(&self) -> bool {
        false
    }

    /// Why the session ended, where it can say more than that it did.
    fn why_ended(&self) -> Option<String> {
        None
    }

    /// Cancelled when the session has ended. Cancelling it ends the session.
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

    /// The longest pause after attempts that failed; meanwhile calls fail at once. Starting a
    /// program or asking a stranger's server again and again is worth a long one.
    fn longest_pause(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// Parameters of a new session.
#[derive(Clone)]
pub struct Opening {
    /// The lease that the session belongs to; `None` for one that all containers share.
    pub container: Option<Arc<Container>>,
    /// The client's revision.
    pub version: Version,
    /// The capabilities of the client, without `tasks`.
    pub capabilities: Arc<RawValue>,
    /// Takes the server's messages that belong to no request.
    pub unsolicited: Events,
}

/// How a server described itself, as raw JSON. `tasks` is removed from the capabilities.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its capabilities.
    pub capabilities: Box<RawValue>,
    /// Its name and version.
    pub server_info: Option<Box<RawValue>>,
    /// Instructions for the model.
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
    /// It violated the protocol.
    #[error("{0}")]
    Protocol(String),
    /// Too many requests are under way in the session, or sessions in use.
    #[error("too many requests to the server are under way")]
    Busy,
    /// The chain denied the mount's own request.
    #[error("{0}")]
    Denied(Denial),
}

impl MountError {
    /// Whether the server could not be reached during a request, or violated the protocol.
    pub(super) fn is_of_server(&self) -> bool {
        match self {
            Self::Denied(denial) => denial.code().fault() == Fault::Upstream,
            Self::CannotStart(_) | Self::Protocol(_) => true,
            Self::Died { .. }
            | Self::Write(_)
            | Self::TimedOut
            | Self::NotImplemented(_)
            | Self::Busy => false,
        }
    }

    /// The denial for the client.
    pub fn into_denial(self, server: &str) -> Denial {
        let code = match &self {
            Self::Denied(denial) if is_unreachable(denial) => {
                let sentence = format!("{server}: {}", denial.sentence());
                return Denial::new(Code::ToolUnavailable, sentence).with("server", server);
            }
            Self::Denied(denial) => return denial.clone(),
            Self::CannotStart(_) | Self::Died { .. } | Self::Busy => Code::ToolUnavailable,
            Self::Write(_) => Code::InternalError,
            Self::TimedOut => Code::ToolTimeout,
            Self::NotImplemented(_) => Code::NotImplemented,
            Self::Protocol(_) => Code::UpstreamUnreachable,
        };
        Denial::new(code, format!("{server}: {self}")).with("server", server)
    }
}

/// Whether no connection to the server could be made, or it broke off.
fn is_unreachable(denial: &Denial) -> bool {
    match denial.code() {
        Code::UpstreamUnreachable | Code::UpstreamTls => true,
        Code::UpstreamTimeout => denial.stage() != Some(Stage::Response),
        _ => false,
    }
}
