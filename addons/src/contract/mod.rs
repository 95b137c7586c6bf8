//! The contract that the engine and every addon stand on.
//!
//! A flow enters at one of the doors, passes the [`Chain`] phase by phase, and leaves through
//! a [`Permit`]. Everything here is a plain value in normal form: an addon never sees a raw
//! string from the wire, and never opens a socket.

mod addon;
mod body;
mod chain;
mod container;
mod denial;
mod dns;
mod entry;
mod facts;
mod flow;
mod host;
mod judge;
mod message;
pub mod names;
mod path;
mod permit;
mod ports;
pub mod settings;
mod slots;
mod type_map;

pub use addon::{Addon, Order, Step};
pub use body::{BodyFilter, BodyOut, BoxFuture, MessageFilter};
pub use chain::{Chain, OrderError, ResolvePermit};
pub use container::{AuthMode, Container, ContainerId, Level, Registration, Repo, Source};
pub use denial::{Answer, Code, Denial, Fault, Stage, Verdict};
pub use dns::{DnsAnswer, DnsQuery};
pub use entry::{Allowlist, Entry, EntryMap, HostMap, HostPattern, HostSet, Origin, PatternError};
pub use facts::{Anonymous, ApiCall, Lookup};
pub use flow::{
    Client, Counters, Flow, FlowId, Kind, LeaseHandle, Note, Outcome, Principal, Record, Scheme,
    System,
};
pub use host::{Authority, AuthorityError, Host, fold_address};
pub use judge::{BodyJudge, Buffered, InspectionBudget, Judges};
pub use message::{Request, Response};
pub use path::{Ambiguity, Path};
pub use permit::{Addresses, Permit};
pub use ports::{
    Containers, FileLock, FileVersion, Outbound, OutboundError, OwnAddresses, Replacement,
    SecretFiles, SecretSource, SecretText, SystemPorts, Tasks, Unavailable,
};
pub use slots::{Slot, Slots};
pub use type_map::TypeMap;
