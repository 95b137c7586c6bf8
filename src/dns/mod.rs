//! The DNS server: questions over UDP, TCP and HTTP, each a flow through the chain.
//!
//! The socket loops are written here, with limits on connections, questions, bytes and time;
//! hickory parses and writes the messages. The client is identified before a packet is parsed, and
//! no name is resolved without the chain's permit. The ingress receives questions over HTTP; they
//! are judged and answered here.

mod bounds;
mod client;
mod flow;
mod https;
mod message;
mod question;
mod server;
mod service;
mod tcp;
mod udp;

use crate::snapshot::{Snapshot, SnapshotStore};

pub use bounds::Limits;
pub use client::DnsClient;
pub use hickory_resolver::net::xfer::Protocol;
pub use question::{Refused, read_question};
pub use server::DnsServer;
pub use service::Service;
