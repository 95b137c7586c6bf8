//! Confines a command: namespaces, a root of its own, no capabilities, few system calls, and one
//! way out.
//!
//! This folder is the mechanism. What is visible, what the command is and which socket leads out
//! is a [`Spec`], made by those who know why: `run` for a person's command, the MCP gateway for its
//! servers. What both show of this machine is in [`machine`].
//!
//! Three processes, each a re-execution of this binary: the one that calls [`start`], the
//! *forwarder*, which makes the namespaces and carries bytes between loopback inside and the
//! Unix listener outside, and *PID 1* of the sandbox, which builds the root, gives up every
//! privilege and starts the command. Each dies with the one before it.

mod channel;
mod diagnosis;
mod forwarder;
mod handle;
mod loopback;
pub mod machine;
mod mount_table;
mod namespaces;
mod new_root;
mod pid1;
mod privileges;
mod spec;
mod supervisor;
mod system_calls;

pub use channel::Channel;
pub use forwarder::run as run_forwarder;
pub use handle::{Ending, Event, OURSELVES, Refused, Sandbox, Signalled, start, start_unconfined};
pub use pid1::run as run_pid1;
pub use spec::{Access, Command, Entry, Spec, Terminal};
pub use supervisor::run as run_supervisor;

/// Where the proxy answers inside.
pub const PROXY_PORT: u16 = 3128;
/// Where the MCP gateway answers inside.
pub const GATEWAY_PORT: u16 = 8090;

/// The hidden command that is the forwarder.
pub const FORWARDER: &str = "sandbox-forwarder";
/// The hidden command that is PID 1.
pub const PID1: &str = "sandbox-pid1";
/// The hidden command that supervises a command which is not confined.
pub const SUPERVISOR: &str = "sandbox-supervisor";
