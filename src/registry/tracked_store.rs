//! The store with the levels written to it.

use std::collections::HashMap;

use addons::contract::{Container, LeaseId, Level, Registration};

use super::store::{LeaseStore, StoreError};

/// A store with the security levels in it, so that only levels that changed are written.
pub(super) struct TrackedStore {
    pub(super) store: Box<dyn LeaseStore>,
    /// Levels in the store that are not `Public`.
    levels: HashMap<LeaseId, Level>,
}

impl TrackedStore {
    pub(super) fn new(store: Box<dyn LeaseStore>) -> Self {
        Self {
            store,
            levels: HashMap::new(),
        }
    }

    /// [`LeaseStore::sync`].
    pub(super) fn sync(
        &mut self,
        whole: bool,
        mut take: impl FnMut(Registration),
    ) -> Result<bool, StoreError> {
        let mut levels = HashMap::new();
        let was_read = self.store.sync(whole, &mut |lease| {
            if lease.level != Level::Public {
                levels.insert(lease.lease, lease.level);
            }
            take(lease);
        })?;
        if was_read {
            self.levels = levels;
        }
        Ok(was_read)
    }

    /// Whether the store has the level that a lease's container has reached.
    pub(super) fn has_level(&self, container: &Container) -> bool {
        let level = self.levels.get(&container.lease).copied();
        level.unwrap_or_default() == container.level()
    }

    /// [`LeaseStore::set_level`].
    pub(super) fn set_level(&mut self, lease: LeaseId, level: Level) -> Result<(), StoreError> {
        self.store.set_level(lease, level)?;
        self.levels.insert(lease, level);
        Ok(())
    }
}
