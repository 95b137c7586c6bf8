//! An index of leases by container id or by source.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use addons::contract::{Container, ContainerId, Source};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

/// The property of a container by which an [`Index`] finds its lease.
pub(super) trait Key: Eq + Hash {
    fn of(container: &Container) -> &Self;
}

impl Key for ContainerId {
    fn of(container: &Container) -> &Self {
        &container.id
    }
}

impl Key for Source {
    fn of(container: &Container) -> &Self {
        &container.source
    }
}

/// A lease that is hashed and compared by its key. The key is borrowed from the container, since a
/// copy of each key would double the memory of the index.
struct Keyed<K>(Arc<Container>, PhantomData<fn() -> K>);

impl<K: Key> Borrow<K> for Keyed<K> {
    fn borrow(&self) -> &K {
        K::of(&self.0)
    }
}

impl<K: Key> Hash for Keyed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        K::of(&self.0).hash(state);
    }
}

impl<K: Key> PartialEq for Keyed<K> {
    fn eq(&self, other: &Self) -> bool {
        K::of(&self.0) == K::of(&other.0)
    }
}

impl<K: Key> Eq for Keyed<K> {}

/// Leases by key, at most one for each key.
pub(super) struct Index<K: Key>(DashMap<Keyed<K>, ()>);

impl<K: Key> Default for Index<K> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<K: Key> Index<K> {
    pub(super) fn get(&self, key: &K) -> Option<Arc<Container>> {
        self.0.get(key).map(|found| Arc::clone(&found.key().0))
    }

    /// Inserts a lease. Returns the lease with the same key that it atomically replaces.
    pub(super) fn insert(&self, container: &Arc<Container>) -> Option<Arc<Container>> {
        match self.0.entry(Keyed(Arc::clone(container), PhantomData)) {
            Entry::Occupied(entry) => Some(entry.replace_entry(()).0.0),
            Entry::Vacant(entry) => {
                entry.insert(());
                None
            }
        }
    }

    /// Removes this lease, but not another one with the same key.
    pub(super) fn remove(&self, container: &Arc<Container>) {
        self.0.remove_if(K::of(container), |found, ()| {
            Arc::ptr_eq(&found.0, container)
        });
    }

    /// Calls `show` with every lease, in no particular order. A shard of the index is locked during
    /// each call, so a `show` that changes the index could deadlock.
    pub(super) fn each(&self, mut show: impl FnMut(&Arc<Container>)) {
        for entry in &self.0 {
            show(&entry.key().0);
        }
    }
}

#[cfg(test)]
mod tests {
    use addons::contract::{AuthMode, LeaseId, Registration, Standing};
    use time::OffsetDateTime;

    use super::*;

    fn lease(id: &str, last: u8) -> Arc<Container> {
        Arc::new(Container::new(Registration {
            id: ContainerId::parse(id).unwrap(),
            lease: LeaseId::generate(),
            source: Source::Address([127, 0, 0, last].into()),
            repos: Vec::new(),
            auth_mode: AuthMode::User,
            created_at: OffsetDateTime::UNIX_EPOCH,
            expires_at: OffsetDateTime::UNIX_EPOCH,
            allowed_domains: None,
            standing: Standing::default(),
        }))
    }

    #[test]
    fn an_inserted_lease_replaces_the_lease_with_the_same_key() {
        let index = Index::<Source>::default();
        let (first, second) = (lease("a", 1), lease("b", 1));
        assert!(index.insert(&first).is_none());
        let replaced = index.insert(&second).unwrap();
        assert!(Arc::ptr_eq(&replaced, &first));
        let found = index.get(&first.source).unwrap();
        assert!(Arc::ptr_eq(&found, &second));
        assert!(index.get(&lease("b", 2).source).is_none());
    }

    #[test]
    fn removing_a_lease_does_not_remove_another_lease_with_the_same_key() {
        let index = Index::<ContainerId>::default();
        let (gone, present) = (lease("a", 1), lease("a", 2));
        index.insert(&present);
        index.remove(&gone);
        assert!(index.get(&present.id).is_some());
        index.remove(&present);
        assert!(index.get(&present.id).is_none());
        index.each(|_| panic!("the index still contains a lease"));
    }
}
