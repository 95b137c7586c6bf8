//! Wraps the store of leases: caches the stored standings, and remembers since when the store is
//! locked and why the last write failed. The standing of a container is its security level and its
//! abort latch.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::{Container, ContainerId, Registration, Standing};
use tokio::time::Instant;

use super::store::{LeaseStore, StoreError};

/// A store, with a copy of its standings, so that only changed standings are written.
pub(super) struct TrackedStore {
    pub(super) store: Box<dyn LeaseStore>,
    /// A copy of the standings in the store, of containers with a lease. A container without an
    /// entry counts as having the default standing.
    standings: HashMap<ContainerId, Standing>,
    /// Since when another process has locked the store: the time of the first
    /// [`TrackedStore::sync`] that found the store locked. `None` if no sync has found it locked
    /// since the last successful sync. Set by [`Registry::refresh`](super::Registry::refresh).
    pub(super) busy_since: Option<Instant>,
    /// The error of the latest deferred writes, kept so that the same error is logged once. `None`
    /// if they succeeded.
    pub(super) write_error: Option<String>,
}

impl TrackedStore {
    pub(super) fn new(store: Box<dyn LeaseStore>) -> Self {
        Self {
            store,
            standings: HashMap::new(),
            busy_since: None,
            write_error: None,
        }
    }

    /// Calls [`LeaseStore::sync`], and caches the standings. Returns whether the leases were read.
    pub(super) fn sync(
        &mut self,
        whole: bool,
        mut take: impl FnMut(Registration),
    ) -> Result<bool, StoreError> {
        let mut standings = HashMap::new();
        let was_read = self.store.sync(whole, &mut |lease| {
            if lease.standing != Standing::default() {
                standings.insert(lease.id.clone(), lease.standing);
            }
            take(lease);
        })?;
        if was_read {
            self.standings = standings;
        }
        Ok(was_read)
    }

    /// Calls [`LeaseStore::begin`], and copies the standings if that succeeded.
    pub(super) fn begin(&mut self, leases: &mut [Registration]) -> Result<(), StoreError> {
        self.store.begin(leases)?;
        let raised = leases
            .iter()
            .filter(|lease| lease.standing != Standing::default());
        let raised = raised.map(|lease| (lease.id.clone(), lease.standing));
        self.standings.extend(raised);
        Ok(())
    }

    /// Calls [`LeaseStore::remove`].
    pub(super) fn remove(&mut self, id: &ContainerId) -> Result<bool, StoreError> {
        self.standings.remove(id);
        self.store.remove(id)
    }

    fn stored(&self, id: &ContainerId) -> Standing {
        self.standings.get(id).copied().unwrap_or_default()
    }

    /// Whether the stored standing equals the container's current standing.
    pub(super) fn is_standing_stored(&self, container: &Container) -> bool {
        self.stored(&container.id) == container.standing()
    }

    /// Calls [`LeaseStore::end`] with the stricter of the stored standings and those in memory.
    pub(super) fn end(&mut self, ended: &[Arc<Container>]) -> Result<(), StoreError> {
        let leases = ended.iter().map(|ended| {
            let standing = self.stored(&ended.id).and(ended.standing());
            (ended.lease, standing)
        });
        let leases: Vec<_> = leases.collect();
        self.store.end(&leases)
    }

    /// Calls [`LeaseStore::set_standing`], and copies the standing if that succeeded.
    pub(super) fn set_standing(
        &mut self,
        id: &ContainerId,
        standing: Standing,
    ) -> Result<(), StoreError> {
        self.store.set_standing(id, standing)?;
        self.standings.insert(id.clone(), standing);
        Ok(())
    }
}
