//! The servers behind the gateway.
//!
//! [`Mounts`] has a [`Mount`] for each server of `mcp.yaml`. A mount opens sessions on demand.
//! Clients with the same revision and capabilities share a session if they belong to the same lease
//! or the server has the scope `shared`. After a session has ended, the next request opens another
//! one. If a session cannot be opened, or fails within 30 s, a pause begins, which grows with each
//! further failure. During the pause, requests that need a new session fail at once. Each open
//! session has a [`Catalog`] of its server's lists. A list is read when it is first requested. The
//! lists that were read last outlive the session ([`Mount::known`]).
//!
//! The processes of servers start when a lease begins ([`Mounts::lease_begins`]), so that the first
//! session is open soon after its client comes.
//!
//! [`Mounts::changes`] reports when the lists that a container sees may have changed. Other
//! messages that belong to no request go to [`Unsolicited`].

mod cache;
mod catalog;
mod changes;
mod coding;
mod dropped;
mod egress;
mod error;
mod handshake;
mod health;
mod http;
mod known;
mod mount;
mod pace;
mod pages;
mod policy;
mod pool;
mod pooled;
mod ports;
mod process;
mod refused;
mod related;
mod session_key;
mod sessions;
mod stdio;
mod tools;
mod transports;
mod uri_template;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, Code, Container, Denial, Fault, Stage, System};
use serde_json::value::RawValue;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::event::{Event, Events, Params};
use super::message::Outcome;
use super::message_memory::{MessageMemory, MessageReservation, OpenMemory};
use super::version::{Era, Version};
use crate::http::{OwnClient, Service};

pub use catalog::Catalog;
pub use changes::{List, ListChanges};
pub use coding::CodingTransport;
pub use dropped::Dropped;
pub use egress::{Egress, EgressListener};
pub use handshake::MAX_INSTRUCTIONS;
pub use health::{MountHealth, MountState};
pub use http::{
    EventReader, HttpParts, HttpTransport, StreamEvent, add_param_fields, request_fields,
};
pub use known::{Entry, Known, ResourceIndex};
pub use mount::Mount;
pub use policy::{
    Advice, Advisor, PolicyDesk, contents, failed, members_of, policy_uri, resource_not_found,
    resources, structured, text_argument, tools as policy_tools,
};
pub use pool::Mounts;
pub use pooled::{MAX_CALLS, Pooled};
pub use ports::{CurrentChain, MountPorts, Mounted, Origin, Transports, Unsolicited};
pub use process::{
    Children, E2b, LineTaker, Local, MAX_CHILDREN, MAX_CHILDREN_OF_LEASE, Machine, ProcessConfig,
    ProcessManager, Program, RunningProgram, Runtime, Secrets, Spawner,
};
pub use refused::{has_no_network, refused_hosts};
pub use session_key::SessionKey;
pub use sessions::MAX_SESSIONS;
pub use stdio::{CurrentLimits, MakeProcess, MessageLimits, StdioPorts, StdioTransport};
pub use transports::{ServerTransports, process_manager};

/// A session with a server, in one revision and with one set of client capabilities. A session
/// belongs to one lease, or all leases share it.
pub trait MountSession: Send + Sync {
    /// The negotiated revision, and the server's capabilities, name and instructions.
    fn described(&self) -> &Described;

    /// The negotiated revision.
    fn version(&self) -> Version {
        self.described().version
    }

    /// Sends a request and awaits its outcome. Messages of the server that belong to this request
    /// go to `events`. Dropping the future cancels the request at the server. The caller bounds the
    /// wait, since only the caller knows whether the server waits for the client.
    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>>;

    /// Sends a notification.
    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>>;

    /// Checks a tool that the server lists. A tool that breaks a rule of the transport is left out
    /// of every list; the error names the rule.
    fn check_definition(&self, _tool: &RawValue) -> Result<(), String> {
        Ok(())
    }

    /// Whether the server's tools are defined in this program. Such definitions change only with
    /// the program, so they are not pinned.
    fn is_built_in(&self) -> bool {
        false
    }

    /// The reason why the session ended, if one is known.
    fn why_ended(&self) -> Option<String> {
        None
    }

    /// Cancelled when the session has ended. Cancelling it ends the session.
    fn ended(&self) -> &CancellationToken;
}

/// Opens sessions with one server.
pub trait Transport: Send + Sync {
    /// Opens a session: connects to the server or starts it, and negotiates a revision. The
    /// revision is one of the client's era if the server supports that era, and otherwise one of
    /// the other era.
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>>;

    /// Begins what every first session of a lease needs, whoever its client is, and returns. Ends it
    /// with the lease, and when `retired` is cancelled. Returns whether something was begun. By
    /// default, does nothing.
    fn prepare(
        self: Arc<Self>,
        _container: Arc<Container>,
        _retired: CancellationToken,
    ) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(false))
    }

    /// The longest pause after a failure, during which requests for a session fail at once. 30 s
    /// by default, which limits the cost of starting programs and the load on remote servers.
    fn longest_pause(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// Parameters of a new session.
#[derive(Clone)]
pub struct Opening {
    /// The lease that the session belongs to; `None` for a session that all containers share.
    pub container: Option<Arc<Container>>,
    /// The client's revision.
    pub version: Version,
    /// The capabilities of the client, without `tasks`.
    pub capabilities: Arc<RawValue>,
    /// Takes the server's messages that belong to no request.
    pub unsolicited: Events,
}

impl Opening {
    /// Creates the HTTP client of the session, which sends requests on behalf of the session's
    /// container, or of the proxy if all containers share the session.
    fn http_client(
        &self,
        service: &Arc<Service>,
        system: &System,
    ) -> Result<OwnClient, MountError> {
        let client = OwnClient::of(service, system.clone(), self.container.as_ref());
        client.ok_or_else(|| MountError::Denied(Denial::internal()))
    }

    /// Creates the token that ends the session. It is cancelled when the session's lease ends.
    fn ended(&self) -> CancellationToken {
        match &self.container {
            Some(container) => container.ended().child_token(),
            None => CancellationToken::new(),
        }
    }
}

/// The negotiated revision, and the server's description of itself as raw JSON.
#[derive(Clone, Debug)]
pub struct Described {
    /// The revision of the session.
    pub version: Version,
    /// The server's capabilities, without `tasks`.
    pub capabilities: Box<RawValue>,
    /// The server's name and version.
    pub server_info: Option<Box<RawValue>>,
    /// Instructions for the model.
    pub instructions: Option<String>,
}

/// Why a session could not be opened, or why a request has no outcome.
#[derive(Clone, Debug, Error)]
pub enum MountError {
    /// The server could not be started or reached.
    #[error("{0}")]
    CannotStart(String),
    /// The server, its session or the lease ended before the request was answered.
    #[error("the server ended{}", .exit.map(describe_exit).unwrap_or_default())]
    Died {
        /// The exit code of the server, if it is a process that exited.
        exit: Option<i32>,
    },
    /// The request could not be written to the server, or its header fields could not be derived.
    #[error("the request could not be written: {0}")]
    Write(String),
    /// The server did not answer within its `timeout`, or within the time limit of a handshake or a
    /// list.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server's runtime is not implemented in this version.
    #[error("{0}")]
    NotImplemented(String),
    /// The server violated the protocol.
    #[error("{0}")]
    Protocol(String),
    /// Too many requests are under way in the session, or the gateway is ending the session.
    #[error("too many requests to the server are under way")]
    Busy,
    /// The chain or a limit of the proxy denied a request, or an HTTP request to the server failed.
    #[error("{0}")]
    Denied(Denial),
}

/// Text for an exit code. A shell or a version manager's script exits with 127 if it does not find
/// the program that it should start.
fn describe_exit(code: i32) -> String {
    let hint = match code {
        127 => ", as a script does that does not find a program; its stderr is in the proxy's log",
        _ => "",
    };
    format!(" with exit code {code}{hint}")
}

impl MountError {
    /// Whether the error of a request makes the mount unhealthy: the server could not be reached,
    /// or violated the protocol.
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

/// Whether the connection to the server could not be opened or broke off. A response that takes
/// too long does not count.
fn is_unreachable(denial: &Denial) -> bool {
    match denial.code() {
        Code::UpstreamUnreachable | Code::UpstreamTls => true,
        Code::UpstreamTimeout => denial.stage() != Some(Stage::Response),
        _ => false,
    }
}
