//! The DNS server: questions over UDP and TCP, each a flow through the chain.
//!
//! The sockets are loops of our own, bounded everywhere; the messages are hickory's. Who asks is
//! known before a packet is parsed, and nothing is asked upstream that the chain did not clear.

mod bounds;
mod flight;
mod message;
mod question;
mod server;
mod service;
mod tcp;
mod udp;

use std::sync::Arc;

use crate::snapshot::Snapshot;

pub use bounds::Limits;
pub use hickory_resolver::net::xfer::Protocol;
pub use question::{Refused, read_question};
pub use server::DnsServer;

/// Answers the snapshot in force now; called for every packet.
pub type CurrentSnapshot = Arc<dyn Fn() -> Arc<Snapshot> + Send + Sync>;
