//! The leases in memory, which flows read instead of the store.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{Container, ContainerId, LeaseId, Registration, Source, Standing};
use time::OffsetDateTime;
use tokio::sync::{SetOnce, watch};

use super::NewRegistration;
use super::index::Index;

/// The Unix listener of one lease.
#[derive(Clone, Debug)]
pub struct LeaseListener {
    /// The container with the lease. When the lease ends, the socket must be closed.
    pub container: Arc<Container>,
    /// The path of its socket.
    pub socket: PathBuf,
    /// Whether the first attempt to open the socket succeeded; unset until then.
    pub opened: Arc<SetOnce<bool>>,
}

/// The file name of a lease's socket. It cannot contain the container's id, which has up to 128
/// bytes: a socket's path has at most 107.
fn listener_name(lease: LeaseId) -> String {
    format!("sandbox-{}.sock", lease.short())
}

/// Whether a file name has the form of the file name of a lease's socket.
pub fn is_listener_name(name: &str) -> bool {
    let short = name
        .strip_prefix("sandbox-")
        .and_then(|name| name.strip_suffix(".sock"));
    short.is_some_and(|short| short.len() == 12 && short.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The listeners that should be open, by lease.
pub type LeaseListeners = BTreeMap<LeaseId, LeaseListener>;

/// The leases in memory, by source and by id. The cost of a change does not depend on the number of
/// containers.
pub(super) struct View {
    by_source: Index<Source>,
    by_id: Index<ContainerId>,
    listeners: watch::Sender<LeaseListeners>,
    socket_dir: PathBuf,
}

impl View {
    pub(super) fn new(socket_dir: &Path) -> Self {
        Self {
            by_source: Index::default(),
            by_id: Index::default(),
            listeners: watch::Sender::default(),
            socket_dir: socket_dir.to_owned(),
        }
    }

    pub(super) fn find(&self, source: &Source) -> Option<Arc<Container>> {
        self.by_source.get(source)
    }

    pub(super) fn get(&self, id: &ContainerId) -> Option<Arc<Container>> {
        self.by_id.get(id)
    }

    pub(super) fn all_that(&self, wanted: impl Fn(&Container) -> bool) -> Vec<Arc<Container>> {
        let mut found = Vec::new();
        self.by_id.each(|container| {
            if wanted(container) {
                found.push(Arc::clone(container));
            }
        });
        found
    }

    pub(super) fn count(&self, wanted: impl Fn(&Container) -> bool) -> usize {
        let mut count = 0;
        self.by_id
            .each(|container| count += usize::from(wanted(container)));
        count
    }

    pub(super) fn listeners(&self) -> watch::Receiver<LeaseListeners> {
        self.listeners.subscribe()
    }

    /// The Unix listener of a lease; `None` if its source is an address.
    pub(super) fn listener(&self, container: &Container) -> Option<LeaseListener> {
        self.listeners.borrow().get(&container.lease).cloned()
    }

    fn socket(&self, container: &Container) -> Option<PathBuf> {
        match container.source {
            Source::Address(_) => None,
            Source::Listener(_) => Some(self.socket_dir.join(listener_name(container.lease))),
        }
    }

    /// The containers with a live lease that has the id or the source of a registration.
    pub(super) fn holders(&self, new: &NewRegistration, now: OffsetDateTime) -> Vec<ContainerId> {
        let found = [self.get(&new.id), self.find(&new.source)];
        let live = found.into_iter().flatten().filter(|old| old.is_live(now));
        let mut ids: Vec<_> = live.map(|old| old.id.clone()).collect();
        ids.dedup();
        ids
    }

    /// Inserts a lease. Ends the leases that had its id or its source.
    pub(super) fn insert(&self, registration: Registration) -> Arc<Container> {
        let container = Arc::new(Container::new(registration));
        self.put(&container);
        container
    }

    fn put(&self, container: &Arc<Container>) {
        let same_id = self.by_id.insert(container);
        let same_source = self.by_source.insert(container);
        for old in [same_id, same_source].into_iter().flatten() {
            self.remove(&old);
        }
        if let Some(socket) = self.socket(container) {
            let listener = LeaseListener {
                container: Arc::clone(container),
                socket,
                opened: Arc::default(),
            };
            self.listeners.send_modify(|listeners| {
                listeners.insert(container.lease, listener);
            });
        }
    }

    /// Ends this lease and removes it from all indexes, but no other lease with its id or source.
    pub(super) fn remove(&self, container: &Arc<Container>) {
        let same = |found: &Arc<Container>| Arc::ptr_eq(found, container);
        self.by_source.remove(container);
        self.by_id.remove(container);
        self.listeners.send_if_modified(|listeners| {
            let listed = listeners.get(&container.lease);
            let ours = listed.is_some_and(|listener| same(&listener.container));
            if ours {
                listeners.remove(&container.lease);
            }
            ours
        });
        container.end();
    }

    /// Begins to update the view from the store.
    pub(super) fn draft(&self) -> Draft<'_> {
        Draft {
            view: self,
            kept: HashSet::new(),
            moved: Vec::new(),
            begun: Vec::new(),
        }
    }

    /// Ends the leases that have expired; they stay in the view.
    pub(super) fn end_expired(&self, now: OffsetDateTime) {
        self.by_id.each(|container| {
            if container.expired(now) {
                container.end();
            }
        });
    }

    /// The replacements of leases that ended too early because the system clock jumped forward and
    /// was corrected. An ended lease that is still in the view has ended by expiry. Each
    /// replacement has a new lease id, since an ended lease never becomes live again.
    pub(super) fn ended_too_early(&self, now: OffsetDateTime) -> Vec<Registration> {
        let ended = self.all_that(|container| container.has_ended() && !container.expired(now));
        let again = ended.iter().map(|container| Registration {
            id: container.id.clone(),
            lease: LeaseId::generate(),
            source: container.source.clone(),
            repos: container.repos.to_vec(),
            auth_mode: container.auth_mode,
            created_at: container.created_at,
            expires_at: container.expires_at(),
            allowed_domains: container.allowed_domains().map(<[_]>::to_vec),
            standing: container.standing(),
        });
        again.collect()
    }
}

/// The differences between store and view. Rows are compared one by one, since all rows at once
/// would take more memory than the view. The view is unchanged until [`Draft::follow`].
pub(super) struct Draft<'a> {
    view: &'a View,
    /// Leases of the view that are in the store.
    kept: HashSet<LeaseId>,
    /// Those of them with another expiry or a stricter standing in the store, and these two.
    moved: Vec<(Arc<Container>, OffsetDateTime, Standing)>,
    /// Leases that are only in the store.
    begun: Vec<Arc<Container>>,
}

impl Draft<'_> {
    /// Compares a row of the store with the view.
    pub(super) fn add(&mut self, row: Registration) {
        let found = self.view.get(&row.id);
        let Some(container) = found.filter(|container| is_same_lease(container, &row)) else {
            self.begun.push(Arc::new(Container::new(row)));
            return;
        };
        self.kept.insert(row.lease);
        let standing = container.standing();
        if container.expires_at() != row.expires_at || standing.and(row.standing) != standing {
            self.moved.push((container, row.expires_at, row.standing));
        }
    }

    /// Updates the view from the store. An unchanged lease keeps its `Container` and the state that
    /// it owns; a lease that is not in the store ends.
    pub(super) fn follow(self) {
        let gone = |container: &Container| !self.kept.contains(&container.lease);
        for container in self.view.all_that(gone) {
            self.view.remove(&container);
        }
        for (container, expires_at, standing) in self.moved {
            container.extend(expires_at);
            container.reach(standing);
        }
        for container in &self.begun {
            self.view.put(container);
        }
    }
}

fn is_same_lease(container: &Container, row: &Registration) -> bool {
    container.lease == row.lease
        && container.id == row.id
        && container.source == row.source
        && *container.repos == *row.repos
        && container.auth_mode == row.auth_mode
        && container.created_at == row.created_at
        && container.allowed_domains() == row.allowed_domains.as_deref()
}

/// Whether a registration is equal to that of a lease, apart from the expiry.
pub(super) fn is_same_body(container: &Container, new: &NewRegistration) -> bool {
    container.id == new.id
        && container.source == new.source
        && *container.repos == *new.repos
        && container.auth_mode == new.auth_mode
        && container.allowed_domains() == new.allowed_domains.as_deref()
}
