//! The DNS server: questions over UDP and TCP, each a flow through the chain.
//!
//! The sockets are loops of our own, bounded everywhere; the messages are hickory's. Who asks is
//! known before a packet is parsed, and nothing is asked upstream that the chain did not clear.

mod bounds;
mod message;
mod question;
mod server;
mod service;
mod tcp;
mod udp;

use std::sync::Arc;

use addons::contract::{Chain, Containers};

use crate::config::Config;
use crate::net::Resolver;

pub use server::DnsServer;

/// What a question is judged and answered with. A flow keeps the world it began in.
pub struct World {
    /// The addons.
    pub chain: Arc<Chain>,
    /// The configuration that the chain was built from.
    pub config: Arc<Config>,
    /// Who is at which address.
    pub containers: Arc<dyn Containers>,
    /// The resolver that the dialer uses too.
    pub resolver: Arc<Resolver>,
}

/// Answers the world in force now; called for every packet.
pub type CurrentWorld = Arc<dyn Fn() -> Arc<World> + Send + Sync>;
