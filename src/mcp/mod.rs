//! The MCP gateway: one endpoint for many tool servers. The chain judges each message that the
//! gateway relays.

mod advice;
mod caller;
mod contexts;
mod core;
mod definitions;
mod error;
mod event;
mod fields;
mod gateway;
mod human;
mod implementation;
mod message;
mod message_memory;
mod mounts;
pub mod policy;
mod random;
mod tasks;
mod version;
mod warnings;

pub use self::core::{
    Attachment, ClientRequest, Core, CurrentRules, Description, Filter, Interest,
    MAX_CALLS as MAX_CALLS_IN_ALL, MAX_CALLS_PER_LEASE, MAX_SUBSCRIPTIONS, Rules, SERVERS_META,
};
pub use advice::DryRuns;
pub use caller::{Caller, LogLevel, TraceContext};
pub use definitions::{AcceptError, DefinitionFile, Digests, PinnedDefinitions, StoredDefinitions};
pub use error::{HEADER_MISMATCH, INVALID_REQUEST, PARSE_ERROR, SERVER_ERROR, protocol_error};
pub use event::{EVENT_QUEUE, Event, Events, Params};
pub use fields::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
pub use gateway::{Gateway, GatewayMetrics, end_token_agent};
pub use human::{Act, Decisions, People};
pub use message::{Id, Message, MessageError, Outcome, write_request, write_response};
pub use message_memory::{MessageMemory, OpenMemory};
pub use mounts::{
    Catalog, Children, CodingTransport, CurrentChain, CurrentLimits, Described, Dropped, E2b,
    Egress, EgressListener, Entry, EventReader, HttpParts, HttpTransport, Known, LineTaker, List,
    ListChanges, Local, MAX_CALLS, MAX_CHILDREN, MAX_CHILDREN_OF_LEASE, MAX_SESSIONS, Machine,
    MakeProcess, MessageLimits, Mount, MountError, MountHealth, MountPorts, MountSession,
    MountState, Mounted, Mounts, Opening, Origin, PolicyDesk, Pooled, ProcessConfig,
    ProcessManager, Program, Runtime, ServerTransports, Spawner, StdioPorts, StdioTransport,
    StreamEvent, Transport, Transports, Unsolicited, add_param_fields, process_manager,
    request_fields,
};
pub use version::{Era, Version};
