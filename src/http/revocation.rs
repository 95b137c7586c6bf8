//! Judges the permissions of tunnels, WebSockets and the latest request in absolute form again
//! after each reload.

use std::time::Duration;

use addons::contract::Fault;

use super::permission::Permission;
use super::session::Session;
use crate::snapshot::Snapshot;

/// Delay between a reload and the new judgement of the latest request. A request that began under
/// the old configuration has recorded its permission by then.
const SETTLE: Duration = Duration::from_millis(100);

impl Session {
    /// Returns when a reload revokes a permission: `permitted` (a tunnel or WebSocket) or, if that
    /// is `None`, that of the latest request in absolute form.
    pub(super) async fn revoked(&self, permitted: Option<&Permission>) {
        let mut generation = match permitted {
            Some(permitted) => permitted.generation,
            None => self.service.snapshot().generation(),
        };
        loop {
            let snapshot = self.service.snapshots.wait_for_change(generation).await;
            generation = snapshot.generation();
            let permitted = match permitted {
                Some(permitted) => Some(permitted.clone()),
                None => {
                    tokio::time::sleep(SETTLE).await;
                    self.latest_permission.lock().clone()
                }
            };
            if let Some(permitted) = permitted
                && !Box::pin(self.may_still(&permitted, &snapshot)).await
            {
                return;
            }
        }
    }

    /// Whether the chain still permits a tunnel to the endpoint, in a dry run that is neither
    /// counted nor recorded. Only a denial by policy revokes a permission; a temporary failure does
    /// not.
    async fn may_still(&self, permitted: &Permission, snapshot: &Snapshot) -> bool {
        let Permission { kind, endpoint, .. } = permitted;
        let start = self.start(snapshot, *kind, endpoint.clone());
        match snapshot.chain().tunnel(&mut start.begin_dry()).await {
            Ok(_) => true,
            Err(denial) => denial.code().fault() != Fault::Policy,
        }
    }
}
