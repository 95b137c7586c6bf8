//! The leases in memory, which flows read instead of the store.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{Container, ContainerId, LeaseId, Registration, Source, Standing};
use time::OffsetDateTime;
use tokio::sync::{SetOnce, watch};

use super::ended::EndedLeases;
use super::index::Index;

/// The Unix listener of one lease.
#[derive(Clone, Debug)]
pub struct LeaseListener {
    /// The container with the lease. The end of the lease closes the listener.
    pub container: Arc<Container>,
    /// The path of the listener's socket.
    pub socket: PathBuf,
    /// Whether the first attempt to open the socket succeeded; not set before that attempt.
    pub opened: Arc<SetOnce<bool>>,
}

/// The prefix of the file name of a lease's socket: `sandbox-`, 12 hex digits, `.sock`.
pub const LISTENER_PREFIX: &str = "sandbox-";

/// The file name of a lease's socket. It does not contain the container's id: the id may have 128
/// bytes, but the path of a Unix socket has at most 107 bytes.
fn listener_name(lease: LeaseId) -> String {
    format!("{LISTENER_PREFIX}{}.sock", lease.short())
}

/// The listeners that should be open, by lease.
pub type LeaseListeners = BTreeMap<LeaseId, LeaseListener>;

/// The leases, indexed by source and by container id, and their Unix listeners.
pub(super) struct View {
    by_source: Index<Source>,
    by_id: Index<ContainerId>,
    pub(super) ended: EndedLeases,
    listeners: watch::Sender<LeaseListeners>,
    socket_dir: PathBuf,
}

impl View {
    pub(super) fn new(socket_dir: &Path) -> Self {
        Self {
            by_source: Index::default(),
            by_id: Index::default(),
            ended: EndedLeases::default(),
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

    pub(super) fn filter(&self, wanted: impl Fn(&Container) -> bool) -> Vec<Arc<Container>> {
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

    /// The Unix listener of a lease; `None` if the lease's source is an address, or if the lease is
    /// not in the view.
    pub(super) fn listener(&self, container: &Container) -> Option<LeaseListener> {
        self.listeners.borrow().get(&container.lease).cloned()
    }

    fn socket(&self, container: &Container) -> Option<PathBuf> {
        match container.source {
            Source::Address(_) | Source::Token => None,
            Source::Listener(_) => Some(self.socket_dir.join(listener_name(container.lease))),
        }
    }

    /// The ids of the containers whose live leases the registration would replace: containers with
    /// the same id or the same source.
    pub(super) fn replaced_by(&self, new: &Registration, now: OffsetDateTime) -> Vec<ContainerId> {
        let found = [self.get(&new.id), self.find(&new.source)];
        let live = found.into_iter().flatten().filter(|old| old.is_live(now));
        let mut ids: Vec<_> = live.map(|old| old.id.clone()).collect();
        ids.dedup();
        ids
    }

    /// Begins a lease. Ends the leases with the same id or the same source.
    pub(super) fn insert(&self, registration: Registration) -> Arc<Container> {
        let container = Arc::new(Container::new(registration));
        self.insert_container(&container);
        container
    }

    fn insert_container(&self, container: &Arc<Container>) {
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

    /// Ends this lease and removes it from the view. Another lease with its id or its source stays.
    pub(super) fn remove(&self, container: &Arc<Container>) {
        self.ended.add(container);
        self.by_source.remove(container);
        self.by_id.remove(container);
        self.listeners.send_if_modified(|listeners| {
            let listed = listeners.get(&container.lease);
            let ours = listed.is_some_and(|listed| Arc::ptr_eq(&listed.container, container));
            if ours {
                listeners.remove(&container.lease);
            }
            ours
        });
        container.end();
    }

    /// Begins an update of the view from the store.
    pub(super) fn draft(&self) -> Draft<'_> {
        Draft {
            view: self,
            kept: HashSet::new(),
            changed: Vec::new(),
            begun: Vec::new(),
        }
    }

    /// Ends the leases that have expired. They stay in the view, where
    /// [`View::replacements_for_early_ends`] finds them, until a flow finds them expired, they are
    /// pruned, or they are no longer in the store.
    pub(super) fn end_expired(&self, now: OffsetDateTime) {
        self.by_id.each(|container| {
            if container.expired(now) {
                container.end();
            }
        });
    }

    /// Returns replacements for the leases in the view that have ended but expire after `now`. This
    /// happens if the system clock jumped forward and was corrected, or if another process extended
    /// the lease just when it expired. A lease that ends for any other reason is removed from the
    /// view. Each replacement has a new lease id, since an ended lease never becomes live again.
    pub(super) fn replacements_for_early_ends(&self, now: OffsetDateTime) -> Vec<Registration> {
        let ended = self.filter(|container| container.has_ended() && !container.expired(now));
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

/// Collects the differences between the store and the view. Compares each row as it is read, since
/// a list of all rows would take more memory than the view. The view is unchanged until
/// [`Draft::apply`].
pub(super) struct Draft<'a> {
    view: &'a View,
    /// Leases of the view that are in the store.
    kept: HashSet<LeaseId>,
    /// Kept leases whose expiry in the store differs, or whose standing in the store is stricter,
    /// each with its expiry and standing in the store.
    changed: Vec<(Arc<Container>, OffsetDateTime, Standing)>,
    /// New leases: rows that are in the store and not in the view.
    begun: Vec<Arc<Container>>,
}

impl Draft<'_> {
    /// Compares a row of the store with the lease of the same container in the view.
    pub(super) fn add(&mut self, row: Registration) {
        let found = self.view.get(&row.id);
        let Some(container) = found.filter(|container| is_same_lease(container, &row)) else {
            self.begun.push(Arc::new(Container::new(row)));
            return;
        };
        self.kept.insert(row.lease);
        let standing = container.standing();
        if container.expires_at() != row.expires_at || standing.and(row.standing) != standing {
            self.changed.push((container, row.expires_at, row.standing));
        }
    }

    /// Updates the view. A lease whose row has not changed, except in expiry and standing, keeps
    /// its `Container` with all state. Each other row begins a lease. Each other lease of the view
    /// ends.
    pub(super) fn apply(self) {
        let gone = |container: &Container| !self.kept.contains(&container.lease);
        for container in self.view.filter(gone) {
            self.view.remove(&container);
        }
        for (container, expires_at, standing) in self.changed {
            container.extend(expires_at);
            container.reach(standing);
        }
        for container in &self.begun {
            self.view.insert_container(container);
        }
    }
}

fn is_same_lease(container: &Container, row: &Registration) -> bool {
    container.lease == row.lease
        && container.created_at == row.created_at
        && has_same_registration(container, row)
}

/// Whether two leases have equal registrations, apart from lease id, times and standing.
pub(super) fn has_same_registration(container: &Container, new: &Registration) -> bool {
    container.id == new.id
        && container.source == new.source
        && *container.repos == *new.repos
        && container.auth_mode == new.auth_mode
        && container.allowed_domains() == new.allowed_domains.as_deref()
}
