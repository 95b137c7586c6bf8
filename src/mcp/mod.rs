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
pub use event::{EVENT_QUEUE, Event, Events};
pub use gateway::{Backend, Gateway, GatewayMetrics, Parts};
pub use message::{Id, Message, MessageError, Outcome};
pub use mounts::{
    Catalog, Children, CurrentChain, CurrentLimits, Described, Dropped, E2b, Entry, HttpParts,
    HttpTransport, Known, LineTaker, List, ListChanges, Local, MAX_CALLS, MAX_CHILDREN,
    MAX_CHILDREN_OF_LEASE, MAX_SESSIONS, Machine, MakeProcess, MessageLimits, Mount, MountError,
    MountHealth, MountPorts, MountSession, MountState, Mounts, OpenWayOut, Opening, Origin, Pooled,
    ProcessConfig, ProcessManager, Runtime, ServerTransports, Spawner, StdioPorts, StdioTransport,
    Transport, Transports, Unsolicited, WayOut,
};
pub use version::{Era, Version};
