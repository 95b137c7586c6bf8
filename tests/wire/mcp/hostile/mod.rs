//! The gateway with malicious clients and servers.

pub mod client;
pub mod server;

mod approvals;
mod approvals_tasks;
mod arguments;
mod bounds;
mod definitions;
mod floods;
mod isolation;
mod levels;
mod log;
mod network_access;
mod policies;
mod questions;
mod sessions;
