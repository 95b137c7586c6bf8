//! What a flow needs besides itself, as one immutable value.

use std::sync::Arc;

use addons::contract::{Chain, Client, Containers, Entry, Flow, Host, Kind, Scheme};
use addons::shards::Shards;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::config::Config;
use crate::net::{Places, Resolver};
use crate::tls::UpstreamTls;

/// The configuration in force and all that was built from it. A reload makes another one; a
/// flow keeps the one it began with.
#[derive(Clone)]
pub struct World {
    /// Told apart from the worlds before it.
    pub epoch: u64,
    pub config: Arc<Config>,
    pub chain: Arc<Chain>,
    pub containers: Arc<dyn Containers>,
    pub resolver: Arc<Resolver>,
    pub places: Arc<Places>,
    pub upstream_tls: UpstreamTls,
}

impl World {
    /// Begins a flow, with the allowlist entry that its host falls under.
    pub fn flow(&self, kind: Kind, client: Client, scheme: Scheme, host: Host, port: u16) -> Flow {
        let entry: Option<Arc<Entry>> = self.config.allowlist.find(&host).cloned();
        Flow::new(kind, client, scheme, host, port, entry)
    }
}

/// The world in force, and news of the next one.
pub struct Worlds {
    /// Each thread has a handle of its own: all flows hold it, and are counted there.
    current: Shards<ArcSwap<World>>,
    epoch: watch::Sender<u64>,
}

impl Worlds {
    /// Begins with this one.
    pub fn new(world: World) -> Self {
        Self {
            epoch: watch::Sender::new(world.epoch),
            current: Shards::each(|| ArcSwap::from_pointee(world.clone())),
        }
    }

    /// The world in force.
    pub fn current(&self) -> Arc<World> {
        self.current.mine().load_full()
    }

    /// Puts another one in force, and tells everybody who waits for it.
    pub fn replace(&self, world: World) {
        let epoch = world.epoch;
        for current in self.current.all() {
            current.store(Arc::new(world.clone()));
        }
        self.epoch.send_replace(epoch);
    }

    /// The world in force, as soon as it is another one than that of `epoch`.
    pub async fn after(&self, epoch: u64) -> Arc<World> {
        let mut epochs = self.epoch.subscribe();
        // It fails only when the sender is gone, and that one is ours.
        let _ = epochs.wait_for(|current| *current != epoch).await;
        self.current()
    }
}
