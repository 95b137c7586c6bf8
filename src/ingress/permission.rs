//! What lasts is asked for again when the configuration changes.

use std::time::Duration;

use addons::contract::{Fault, Host, Kind, Scheme};

use super::connection::Connection;
use crate::live::LiveFlow;
use crate::snapshot::Snapshot;

/// How long after a reload the request in hand is looked at: one that began under the old
/// configuration has said by then where it goes.
const SETTLE: Duration = Duration::from_millis(100);

/// What was permitted, and under which configuration.
#[derive(Clone)]
pub struct Permission {
    generation: u64,
    kind: Kind,
    scheme: Scheme,
    host: Host,
    port: u16,
}

impl Permission {
    /// What a flow asks for.
    pub fn of(live: &LiveFlow) -> Self {
        let flow = &live.flow;
        Self {
            generation: live.snapshot.generation,
            kind: flow.kind,
            scheme: flow.scheme,
            host: flow.host.clone(),
            port: flow.port,
        }
    }
}

impl Connection {
    /// Ends when a reload takes away what was permitted: a tunnel, or without one the request in
    /// hand.
    pub(super) async fn revoked(&self, permitted: Option<&Permission>) {
        match permitted {
            Some(permitted) => self.tunnel_revoked(permitted).await,
            None => self.request_revoked().await,
        }
    }

    async fn tunnel_revoked(&self, permitted: &Permission) {
        let mut generation = permitted.generation;
        loop {
            let snapshot = self.engine.snapshots.after(generation).await;
            generation = snapshot.generation;
            if !Box::pin(self.may_still(permitted, &snapshot)).await {
                return;
            }
        }
    }

    /// On a connection whose requests go here and there.
    async fn request_revoked(&self) {
        let mut generation = self.engine.snapshot().generation;
        loop {
            let snapshot = self.engine.snapshots.after(generation).await;
            generation = snapshot.generation;
            tokio::time::sleep(SETTLE).await;
            let permitted = self.in_hand.lock().clone();
            if let Some(permitted) = permitted
                && !Box::pin(self.may_still(&permitted, &snapshot)).await
            {
                return;
            }
        }
    }

    /// Asks the chain without counting anything. Only a rule takes a permission away: what
    /// stands is not ended because something is out of order just now.
    async fn may_still(&self, permitted: &Permission, snapshot: &Snapshot) -> bool {
        let Permission {
            kind, scheme, port, ..
        } = *permitted;
        let host = permitted.host.clone();
        let flow = snapshot.flow(kind, self.client.clone(), scheme, host, port);
        let mut flow = flow.dry_run();
        flow.principal = self.principal.clone();
        match snapshot.chain.tunnel(&mut flow).await {
            Ok(_) => true,
            Err(denial) => denial.code().fault() != Fault::Policy,
        }
    }
}
