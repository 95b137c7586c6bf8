//! The snapshot in force, and its replacement by a reload.

use std::sync::Arc;

use addons::contract::{Chain, Containers};
use addons::mcp::Policy;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::config::Config;
use crate::upstream::Network;

/// The configuration in force and everything built from it. A reload makes another snapshot; a flow
/// keeps the snapshot with which it began.
pub struct Snapshot {
    pub config: Arc<Config>,
    pub containers: Arc<dyn Containers>,
    pub network: Arc<Network>,
    /// The configured MCP policies that could not be loaded.
    pub unloaded_policies: Vec<Policy>,
    /// The revision of the policies that judge tool calls.
    pub call_policies: String,
}

impl Snapshot {
    /// The number of this snapshot; each reload makes a snapshot with a larger number.
    pub fn generation(&self) -> u64 {
        self.network.generation
    }

    pub fn chain(&self) -> &Arc<Chain> {
        &self.network.chain
    }
}

/// The snapshot in force; notifies waiters of the next one.
pub struct SnapshotStore {
    current: ArcSwap<Snapshot>,
    generation: watch::Sender<u64>,
}

impl SnapshotStore {
    pub fn new(snapshot: Snapshot) -> Self {
        Self {
            generation: watch::Sender::new(snapshot.generation()),
            current: ArcSwap::from_pointee(snapshot),
        }
    }

    pub fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Replaces the snapshot and wakes all waiters.
    pub fn replace(&self, snapshot: Snapshot) {
        let generation = snapshot.generation();
        self.current.store(Arc::new(snapshot));
        self.generation.send_replace(generation);
    }

    /// Waits until the snapshot in force has another generation than `generation`, and returns that
    /// snapshot. Cancel safe.
    pub async fn wait_for_change(&self, generation: u64) -> Arc<Snapshot> {
        let mut generations = self.generation.subscribe();
        // Fails only after the sender was dropped; `self` owns it.
        let _ = generations.wait_for(|current| *current != generation).await;
        self.current()
    }
}
