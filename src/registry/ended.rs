//! Leases that have ended while something, for example a flow, still holds their containers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use addons::contract::{Container, ContainerId, LeaseId};
use parking_lot::Mutex;

/// The ended leases whose containers are still in memory. Data that arrives for one of them raises
/// the standing of the container's id, unless the id was unregistered since.
#[derive(Default)]
pub(super) struct EndedLeases(Mutex<HashMap<LeaseId, Ended>>);

struct Ended {
    container: Weak<Container>,
    is_unregistered: bool,
}

impl EndedLeases {
    pub(super) fn add(&self, container: &Arc<Container>) {
        self.0
            .lock()
            .entry(container.lease)
            .or_insert_with(|| Ended {
                container: Arc::downgrade(container),
                is_unregistered: false,
            });
    }

    /// Marks the ended leases of a container that is unregistered.
    pub(super) fn unregister(&self, id: &ContainerId) {
        for ended in self.0.lock().values_mut() {
            let container = ended.container.upgrade();
            ended.is_unregistered |= container.is_some_and(|container| container.id == *id);
        }
    }

    /// Whether the container was unregistered after or at the end of this lease.
    pub(super) fn is_unregistered(&self, lease: LeaseId) -> bool {
        let ended = self.0.lock();
        ended.get(&lease).is_some_and(|ended| ended.is_unregistered)
    }

    /// Forgets the leases whose containers nothing holds any more.
    pub(super) fn clean(&self) {
        let mut ended = self.0.lock();
        ended.retain(|_, ended| ended.container.strong_count() > 0);
    }
}
