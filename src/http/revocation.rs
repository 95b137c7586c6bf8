//! Judges permissions that last again after each reload.

use std::time::Duration;

use addons::contract::Fault;

use super::permission::Permission;
use super::session::Session;
use crate::snapshot::Snapshot;

/// How long after a reload the request in hand is judged again. A request that began under the old
/// configuration has recorded its permission by then.
const SETTLE: Duration = Duration::from_millis(100);

impl Session {
    /// Returns when a reload revokes a permission: that of the tunnel or, without one, that of the
    /// request in hand.
    pub(super) async fn revoked(&self, permitted: Option<&Permission>) {
        match permitted {
            Some(permitted) => self.tunnel_revoked(permitted).await,
            None => self.request_revoked().await,
        }
    }

    async fn tunnel_revoked(&self, permitted: &Permission) {
        let mut generation = permitted.generation;
        loop {
            let snapshot = self.service.snapshots.wait_for_change(generation).await;
            generation = snapshot.generation();
            if !Box::pin(self.may_still(permitted, &snapshot)).await {
                return;
            }
        }
    }

    /// Watches a connection whose requests each name their destination.
    async fn request_revoked(&self) {
        let mut generation = self.service.snapshot().generation();
        loop {
            let snapshot = self.service.snapshots.wait_for_change(generation).await;
            generation = snapshot.generation();
            tokio::time::sleep(SETTLE).await;
            let permitted = self.in_hand.lock().clone();
            if let Some(permitted) = permitted
                && !Box::pin(self.may_still(&permitted, &snapshot)).await
            {
                return;
            }
        }
    }

    /// Whether the chain still permits it, in a dry run that is neither counted nor recorded. Only
    /// a policy denial revokes a permission; a temporary failure does not.
    async fn may_still(&self, permitted: &Permission, snapshot: &Snapshot) -> bool {
        let Permission { kind, endpoint, .. } = permitted;
        let chain = snapshot.chain();
        let mut start = chain.to_upstream(*kind, self.client.clone(), endpoint.clone());
        start.principal = self.principal.clone();
        match chain.tunnel(&mut start.begin_dry()).await {
            Ok(_) => true,
            Err(denial) => denial.code().fault() != Fault::Policy,
        }
    }
}
