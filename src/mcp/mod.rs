//! The MCP gateway: one endpoint for many tool servers, with every message judged by the chain.

mod caller;
mod definitions;
mod event;
mod message;
mod mounts;
pub mod policy;
mod version;

pub use caller::{Caller, LogLevel};
pub use definitions::{AcceptError, DefinitionFile, PinnedDefinitions};
pub use event::{EVENT_QUEUE, Event, Events};
pub use message::{Id, Message, MessageError, Outcome};
pub use mounts::{
    Catalog, Children, CurrentChain, CurrentLimits, Described, Dropped, E2b, Entry, HttpParts,
    HttpTransport, Known, LineTaker, List, ListChanges, Local, MAX_CALLS, MAX_CHILDREN,
    MAX_CHILDREN_OF_LEASE, MAX_SESSIONS, Machine, MakeProcess, MessageLimits, Mount, MountError,
    MountHealth, MountPorts, MountSession, MountState, Mounts, OpenWayOut, Opening, Origin, Pooled,
    ProcessConfig, ProcessManager, Runtime, Spawner, StdioPorts, StdioTransport, Transport,
    Transports, Unsolicited, WayOut,
};
pub use version::{Era, Version};
