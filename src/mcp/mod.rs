//! The MCP gateway: one endpoint for many tool servers, with every message judged by the chain.

mod caller;
mod core;
mod definitions;
mod error;
mod event;
mod gateway;
mod message;
mod mounts;
pub mod policy;
mod version;

pub use self::core::{
    Attachment, Core, CurrentRules, Description, Filter, Interest, MAX_CALLS as MAX_CALLS_IN_ALL,
    MAX_CALLS_PER_LEASE, MAX_SUBSCRIPTIONS, Rules,
};
pub use caller::{Caller, LogLevel};
pub use definitions::{AcceptError, DefinitionFile, PinnedDefinitions};
pub use error::{HEADER_MISMATCH, INVALID_REQUEST, PARSE_ERROR, SERVER_ERROR};
pub use event::{EVENT_QUEUE, Event, Events};
pub use gateway::{Backend, Gateway, GatewayMetrics, Parts};
pub use message::{Id, Message, MessageError, Outcome, write_request, write_response};
pub use mounts::{
    Catalog, Children, CodingTransport, CurrentChain, CurrentLimits, Described, Dropped, E2b,
    Entry, EventReader, HttpParts, HttpTransport, Known, LAST_EVENT_ID, LineTaker, List,
    ListChanges, Local, MAX_CALLS, MAX_CHILDREN, MAX_CHILDREN_OF_LEASE, MAX_SESSIONS, Machine,
    MakeProcess, MessageLimits, Mount, MountError, MountHealth, MountPorts, MountSession,
    MountState, Mounted, Mounts, OpenWayOut, Opening, Origin, PROTOCOL_VERSION, Pooled,
    ProcessConfig, ProcessManager, Runtime, SESSION_ID, ServerTransports, Spawner, StdioPorts,
    StdioTransport, Transport, Transports, Unsolicited, WayOut, add_param_fields, process_manager,
    request_fields,
};
pub use version::{Era, Version};
