//! Judges the permissions of tunnels, WebSockets and the latest request in absolute form again
//! after each reload, after each change of the container's security level, and after the end of
//! each of the container's grants. A flow that rests on a live grant passes again.

use std::time::Duration;

use addons::contract::{Container, Fault, Path, Request, Verdict};
use http::{HeaderMap, Method};

use super::permission::Permission;
use super::session::Session;
use crate::snapshot::Snapshot;

/// Delay after a reload or a change of the level before the latest request is judged again. A
/// request that began under the old configuration has recorded its permission by then.
const SETTLE: Duration = Duration::from_millis(100);

impl Session {
    /// Returns when a reload, a change of the container's security level or the end of a grant
    /// revokes a permission:
    /// `permitted` (a tunnel or WebSocket) or, if `permitted` is `None`, the permission of the
    /// latest request in absolute form. Never returns without a container, since every flow of the
    /// connection is denied.
    pub(super) async fn revoked(&self, permitted: Option<&Permission>) {
        let Some(container) = &self.container else {
            return std::future::pending().await;
        };
        let is_outdated = |permitted: &Permission| may_be_outdated(permitted, container);
        let (mut generation, mut is_due) = match permitted {
            Some(permitted) => (permitted.generation, is_outdated(permitted)),
            None => {
                let generation = self.service.snapshot().generation();
                let latest = self.latest_permission.lock();
                (generation, latest.as_ref().is_some_and(is_outdated))
            }
        };
        loop {
            // Made before the judgement, so that a change during the judgement is not missed.
            let level_changed = container.level_changed();
            if is_due && !self.is_still_permitted(permitted).await {
                return;
            }
            tokio::select! {
                snapshot = self.service.snapshots.wait_for_change(generation) => {
                    generation = snapshot.generation();
                }
                () = level_changed => {}
            }
            is_due = true;
        }
    }

    async fn is_still_permitted(&self, permitted: Option<&Permission>) -> bool {
        let permitted = match permitted {
            Some(permitted) => Some(permitted.clone()),
            None => {
                tokio::time::sleep(SETTLE).await;
                self.latest_permission.lock().clone()
            }
        };
        let Some(permitted) = permitted else {
            return true;
        };
        let snapshot = self.service.snapshot();
        Box::pin(self.judge_again(&permitted, &snapshot))
            .await
            .is_ok()
    }

    /// Judges a permission again that may be outdated already. Denies as
    /// [`judge_again`](Self::judge_again) does.
    pub(super) async fn judge_if_outdated(&self, permitted: &Permission) -> Verdict {
        let snapshot = self.service.snapshot();
        let container = self.container.as_ref();
        let is_outdated = permitted.generation != snapshot.generation()
            || container.is_some_and(|container| may_be_outdated(permitted, container));
        match is_outdated {
            true => Box::pin(self.judge_again(permitted, &snapshot)).await,
            false => Ok(()),
        }
    }

    /// Lets the chain judge again a tunnel to the endpoint and, for a WebSocket, its handshake. This
    /// is a dry run, which is neither counted nor recorded. Only a denial by policy revokes a
    /// permission; a temporary failure does not.
    async fn judge_again(&self, permitted: &Permission, snapshot: &Snapshot) -> Verdict {
        let start = self.start(snapshot, permitted.kind, permitted.endpoint.clone());
        let (chain, mut flow) = (snapshot.chain(), start.begin_dry());
        let mut judged = chain.tunnel(&mut flow).await;
        if let (Ok(_), Some(path)) = (&judged, &permitted.websocket) {
            let mut handshake =
                Request::new(Method::GET, Path::parse(path), None, HeaderMap::new());
            handshake.websocket = true;
            judged = chain.request(&mut flow, &mut handshake).await;
        }
        // Nothing judges a flow again whose grant has ended, so it ends on any denial.
        match judged {
            Err(denial) if permitted.rests_on_grant || denial.code().fault() == Fault::Policy => {
                Err(denial)
            }
            _ => Ok(()),
        }
    }
}

/// Whether the level may have risen since the flow was judged, or its grant may have ended.
fn may_be_outdated(permitted: &Permission, container: &Container) -> bool {
    permitted.level < container.level() || permitted.rests_on_grant
}
