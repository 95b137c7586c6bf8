//! What a flow needs besides itself, as one immutable value.

use std::sync::Arc;

use addons::contract::{Chain, Client, Containers, Entry, Flow, Host, Kind, Scheme};

use crate::config::Config;
use crate::net::Resolver;
use crate::tls::UpstreamTls;

/// The configuration in force and all that was built from it. A reload makes another one; a
/// flow keeps the one it began with.
pub struct World {
    /// Told apart from the worlds before it.
    pub epoch: u64,
    pub config: Arc<Config>,
    pub chain: Arc<Chain>,
    pub containers: Arc<dyn Containers>,
    pub resolver: Arc<Resolver>,
    pub upstream_tls: UpstreamTls,
}

impl World {
    /// Begins a flow, with the allowlist entry that its host falls under.
    pub fn flow(&self, kind: Kind, client: Client, scheme: Scheme, host: Host, port: u16) -> Flow {
        let entry: Option<Arc<Entry>> = self.config.allowlist.find(&host).cloned();
        Flow::new(kind, client, scheme, host, port, entry)
    }
}
