//! DNS: questions over UDP, TCP and HTTP, each a flow through the chain.
//!
//! The sockets are loops of our own, bounded everywhere; the messages are hickory's. Who asks is
//! known before a packet is parsed, and nothing is asked upstream that the chain did not clear. What
//! comes over HTTP is read by the ingress, and judged and answered here.

mod asker;
mod bounds;
mod flight;
mod https;
mod message;
mod question;
mod server;
mod service;
mod tcp;
mod udp;

use std::sync::Arc;

use crate::snapshot::Snapshot;

pub use asker::Asker;
pub use bounds::Limits;
pub use hickory_resolver::net::xfer::Protocol;
pub use question::{Refused, read_question};
pub use server::DnsServer;
pub use service::Service;

/// Answers the snapshot in force now; called for every packet.
pub type CurrentSnapshot = Arc<dyn Fn() -> Arc<Snapshot> + Send + Sync>;
