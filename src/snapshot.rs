//! The snapshot in force, and its replacement by a reload.

use std::sync::Arc;

use addons::contract::{Chain, Containers};
use addons::mcp::Policy;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::config::{Config, StoredPolicy};
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
    /// The text of the MCP policies.
    pub policy: Arc<PolicyText>,
}

/// The policies as agents and people read them, and the one that people may replace.
#[derive(Clone, Debug)]
pub struct PolicyText {
    /// The bundle that people may replace: then this is its text. Otherwise, that of all bundles.
    pub editable: Option<Arc<str>>,
    /// The text, or why there is none to show.
    pub text: Result<Arc<str>, String>,
    /// SHA-256 of the text in hexadecimal; empty if there is none.
    pub digest: String,
    /// Whether a policy in the data directory replaces the bundle, even if it cannot be loaded.
    pub is_stored: bool,
    /// The policy in the data directory; `None` if there is none, or if it cannot be read.
    pub stored: Option<StoredPolicy>,
    /// Why the policy is not in force; `None` if it is.
    pub problem: Option<String>,
}

impl Default for PolicyText {
    fn default() -> Self {
        Self {
            editable: None,
            text: Err("mcp.yaml has no policy".to_owned()),
            digest: String::new(),
            is_stored: false,
            stored: None,
            problem: None,
        }
    }
}

/// The id of a bundle, and its text or why there is none to show.
type Base<'p> = (&'p Arc<str>, Result<&'p Arc<str>, &'p String>);

impl PolicyText {
    /// Whether the policy in the data directory is in force, if there is one.
    pub fn is_stored_policy_loaded(&self) -> bool {
        !self.is_stored || self.problem.is_none()
    }

    /// The text of the policy that people may replace, with the id of its bundle.
    pub fn base(&self) -> Option<Base<'_>> {
        Some((self.editable.as_ref()?, self.text.as_ref()))
    }
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
