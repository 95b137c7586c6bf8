//! The MCP gateway: one endpoint for many tool servers, with every message judged by the chain.

mod caller;
mod event;
mod message;
mod mounts;
mod version;

pub use caller::{Caller, LogLevel};
pub use event::{EVENT_QUEUE, Event, Events};
pub use message::{Id, Message, MessageError, Outcome};
pub use mounts::{
    Described, Dropped, HttpParts, HttpTransport, MountError, MountSession, Opening, Transport,
};
pub use version::{Era, Version};
