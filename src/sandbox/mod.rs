//! Confines a command: new namespaces, a private root file system, no capabilities, a seccomp
//! filter, and one way out, a Unix listener.
//!
//! This module is the mechanism. Its callers are `run`, for a person's command, and the MCP
//! gateway, for its servers. They give the visible files and the command in a [`Spec`], and the
//! listener to [`Sandbox::begin`]. The files of this machine that both callers show are in
//! [`machine`].
//!
//! There are three processes. The *launcher* calls [`start`]. The *forwarder* creates the
//! namespaces, and carries bytes between loopback inside and the Unix listener outside. *PID 1* of
//! the sandbox builds the root, drops every privilege and starts the command. The forwarder and PID
//! 1 re-execute this binary, and each is killed when its parent ends. For a command that is not
//! confined, [`start_unconfined`] starts a *supervisor* in place of these two processes, and
//! [`start_in_pid_namespace`] an *init*, which starts the supervisor in a PID namespace.

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
mod pseudo_terminal;
mod session;
mod spec;
mod supervisor;
mod system_calls;

pub use channel::Channel;
pub use forwarder::run as run_forwarder;
pub use handle::{
    Ending, Event, Refused, SELF_EXE, Sandbox, Signalled, start, start_in_pid_namespace,
    start_unconfined,
};
pub use pid1::{is_inside, run as run_pid1};
pub use pseudo_terminal::PseudoTerminal;
pub use session::run as run_session;
pub use spec::{Access, Command, Entry, Limits, Spec, Terminal};
pub use supervisor::{run as run_supervisor, run_init};

/// The port of the proxy on loopback inside the sandbox.
pub const PROXY_PORT: u16 = 3128;
/// The port of the MCP gateway on loopback inside the sandbox.
pub const GATEWAY_PORT: u16 = 8090;

/// The hidden subcommand of the forwarder.
pub const FORWARDER: &str = "sandbox-forwarder";
/// The hidden subcommand of PID 1.
pub const PID1: &str = "sandbox-pid1";
/// The hidden subcommand of the leader of a session in a sandbox of `scripts/sandbox`.
pub const SESSION: &str = "sandbox-session";
/// The hidden subcommand of the supervisor of an unconfined command.
pub const SUPERVISOR: &str = "sandbox-supervisor";
/// The hidden subcommand of the process that starts a supervisor in a PID namespace.
pub const INIT: &str = "sandbox-init";
