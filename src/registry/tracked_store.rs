//! Wraps the store of leases: caches the stored standings, and remembers since when the store is
//! locked and why the last write failed. The standing of a lease is its security level and its
//! abort latch.

use std::collections::HashMap;

use addons::contract::{Container, LeaseId, Registration, Standing};
use tokio::time::Instant;

use super::store::{LeaseStore, StoreError};

/// A store, with a copy of its standings, so that only changed standings are written.
pub(super) struct TrackedStore {
    pub(super) store: Box<dyn LeaseStore>,
    /// A copy of the standings in the store. A lease without an entry counts as having the default
    /// standing.
    standings: HashMap<LeaseId, Standing>,
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
                standings.insert(lease.lease, lease.standing);
            }
            take(lease);
        })?;
        if was_read {
            self.standings = standings;
        }
        Ok(was_read)
    }

    /// Whether the stored standing equals the container's current standing.
    pub(super) fn is_standing_stored(&self, container: &Container) -> bool {
        let standing = self.standings.get(&container.lease).copied();
        standing.unwrap_or_default() == container.standing()
    }

    /// Calls [`LeaseStore::set_standing`], and copies the standing if that succeeded.
    pub(super) fn set_standing(
        &mut self,
        lease: LeaseId,
        standing: Standing,
    ) -> Result<(), StoreError> {
        self.store.set_standing(lease, standing)?;
        self.standings.insert(lease, standing);
        Ok(())
    }
}
