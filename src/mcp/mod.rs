//! The MCP gateway: one endpoint for many tool servers, with every message judged by the chain.

mod caller;
mod definitions;
mod event;
mod message;
mod mounts;
mod version;

pub use caller::{Caller, LogLevel};
pub use definitions::{AcceptError, DefinitionFile, PinnedDefinitions};
pub use event::{EVENT_QUEUE, Event, Events};
pub use message::{Id, Message, MessageError, Outcome};
pub use mounts::{
    Catalog, CurrentChain, Described, Dropped, Entry, HttpParts, HttpTransport, Known, List,
    ListChanges, MAX_CALLS, MAX_SESSIONS, Mount, MountError, MountHealth, MountPorts, MountSession,
    MountState, Mounts, Opening, Origin, Pooled, Transport, Transports, Unsolicited,
};
pub use version::{Era, Version};
