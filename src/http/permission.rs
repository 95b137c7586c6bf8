//! Permissions of flows, which are judged again after a reload: those of tunnels, of WebSockets and
//! of the latest request in absolute form.

use std::time::Duration;

use addons::contract::{Endpoint, Fault, Flow, Kind};

use super::session::Session;
use crate::snapshot::Snapshot;

/// Delay between a reload and the new judgement of the latest request. A request that began under
/// the old configuration has recorded its permission by then.
const SETTLE: Duration = Duration::from_millis(100);

/// A permitted flow: its kind and endpoint, and the configuration that permitted it.
#[derive(Clone)]
pub struct Permission {
    pub generation: u64,
    pub kind: Kind,
    pub endpoint: Endpoint,
}

impl Permission {
    /// The permission of a flow under a snapshot; `None` for a flow without an endpoint, such as a
    /// DNS question, which is judged once.
    pub fn of(flow: &Flow, snapshot: &Snapshot) -> Option<Self> {
        Some(Self {
            generation: snapshot.generation(),
            kind: flow.kind,
            endpoint: flow.endpoint()?.clone(),
        })
    }
}

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
