//! What a flow needs besides itself, as one immutable value.

use std::sync::Arc;

use addons::contract::{Chain, Containers};
use addons::shards::Shards;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::config::Config;
use crate::upstream::Network;

/// The configuration in force and all that was built from it. A reload makes another one; a
/// flow keeps the one it began with.
#[derive(Clone)]
pub struct Snapshot {
    pub config: Arc<Config>,
    pub containers: Arc<dyn Containers>,
    pub network: Arc<Network>,
    /// Every MCP policy of the configuration could be loaded.
    pub policies_loaded: bool,
}

impl Snapshot {
    /// Changes with every reload.
    pub fn generation(&self) -> u64 {
        self.network.generation
    }

    /// The same with handles of its own to what every flow holds: a count of references that
    /// several threads change moves between their caches.
    fn for_thread(&self) -> Self {
        let mut network = Network::clone(&self.network);
        network.chain = Arc::new(Chain::clone(&network.chain));
        Self {
            network: Arc::new(network),
            ..self.clone()
        }
    }

    /// The chain that flows begin under.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.network.chain
    }
}

/// The snapshot in force, and news of the next one.
pub struct SnapshotStore {
    /// Each thread has a handle of its own: all flows hold it, and are counted there.
    current: Shards<ArcSwap<Snapshot>>,
    generation: watch::Sender<u64>,
}

impl SnapshotStore {
    /// Begins with this one.
    pub fn new(snapshot: Snapshot) -> Self {
        Self {
            generation: watch::Sender::new(snapshot.generation()),
            current: Shards::each(|| ArcSwap::from_pointee(snapshot.for_thread())),
        }
    }

    /// The snapshot in force.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.mine().load_full()
    }

    /// Puts another one in force, and tells everybody who waits for it.
    pub fn replace(&self, snapshot: Snapshot) {
        let generation = snapshot.generation();
        for current in self.current.all() {
            current.store(Arc::new(snapshot.for_thread()));
        }
        self.generation.send_replace(generation);
    }

    /// The snapshot in force, as soon as it is another one than that of `generation`.
    pub async fn after(&self, generation: u64) -> Arc<Snapshot> {
        let mut generations = self.generation.subscribe();
        // It fails only when the sender is gone, and that one is ours.
        let _ = generations.wait_for(|current| *current != generation).await;
        self.current()
    }
}
