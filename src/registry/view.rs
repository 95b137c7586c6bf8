//! The registrations in memory: all that a flow ever reads.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{Container, ContainerId, LeaseId, Registration, Source, Standing};
use time::OffsetDateTime;
use tokio::sync::{SetOnce, watch};

use super::NewRegistration;
use super::index::Index;

/// A Unix listener that one container has for its own.
#[derive(Clone, Debug)]
pub struct LeaseListener {
    /// Whose it is; close the socket when its lease ends.
    pub container: Arc<Container>,
    /// Where it listens.
    pub socket: PathBuf,
    /// Whether it could be opened, once that has been tried.
    pub opened: Arc<SetOnce<bool>>,
}

/// The name of a lease's listener. A container's id has up to 128 bytes; a socket's path holds 107.
fn listener_name(lease: LeaseId) -> String {
    format!("sandbox-{}.sock", lease.short())
}

/// Whether a file is called as the listener of a lease is.
pub fn is_listener_name(name: &str) -> bool {
    let short = name
        .strip_prefix("sandbox-")
        .and_then(|name| name.strip_suffix(".sock"));
    short.is_some_and(|short| short.len() == 12 && short.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The listeners that should be open, by lease.
pub type LeaseListeners = BTreeMap<LeaseId, LeaseListener>;

/// Every change costs the same, however many containers there are.
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

    /// The listener that a lease has for its own.
    pub(super) fn listener(&self, container: &Container) -> Option<LeaseListener> {
        self.listeners.borrow().get(&container.lease).cloned()
    }

    fn socket(&self, container: &Container) -> Option<PathBuf> {
        match container.source {
            Source::Address(_) => None,
            Source::Listener(_) => Some(self.socket_dir.join(listener_name(container.lease))),
        }
    }

    /// Who has the id or the source of a registration by a live lease.
    pub(super) fn holders(&self, new: &NewRegistration, now: OffsetDateTime) -> Vec<ContainerId> {
        let found = [self.get(&new.id), self.find(&new.source)];
        let live = found.into_iter().flatten().filter(|old| old.is_live(now));
        let mut ids: Vec<_> = live.map(|old| old.id.clone()).collect();
        ids.dedup();
        ids
    }

    /// Puts a lease in; whoever had its id or its source ends.
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

    /// Takes exactly this lease out, wherever it still stands, and ends it.
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

    /// Begins to make the view like the store.
    pub(super) fn draft(&self) -> Draft<'_> {
        Draft {
            view: self,
            standing: HashSet::new(),
            moved: Vec::new(),
            begun: Vec::new(),
        }
    }

    /// Ends the leases whose time is over.
    pub(super) fn end_expired(&self, now: OffsetDateTime) {
        self.by_id.each(|container| {
            if container.expired(now) {
                container.end();
            }
        });
    }

    /// Leases to begin in the place of those that the clock ended too early, by a jump that was
    /// taken back: only time ends a lease that still stands here. Each has a new id, since an ended
    /// one never lives again.
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

/// What the store holds, compared with the view row by row: all rows at once would take more
/// memory than the view. Nothing changes before [`Draft::follow`].
pub(super) struct Draft<'a> {
    view: &'a View,
    /// Leases that go on.
    standing: HashSet<LeaseId>,
    /// Those of them that got another end or standing.
    moved: Vec<(Arc<Container>, OffsetDateTime, Standing)>,
    begun: Vec<Arc<Container>>,
}

impl Draft<'_> {
    pub(super) fn add(&mut self, row: Registration) {
        let found = self.view.get(&row.id);
        let Some(container) = found.filter(|container| is_same_lease(container, &row)) else {
            self.begun.push(Arc::new(Container::new(row)));
            return;
        };
        self.standing.insert(row.lease);
        let standing = container.standing();
        if container.expires_at() != row.expires_at || standing.and(row.standing) != standing {
            self.moved.push((container, row.expires_at, row.standing));
        }
    }

    /// Makes the view like the store. A lease that is the same keeps its `Container`, and with it
    /// what it owns; one that is gone ends.
    pub(super) fn follow(self) {
        let gone = |container: &Container| !self.standing.contains(&container.lease);
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

/// Whether the body is the one that the lease began with, but for its expiry.
pub(super) fn is_same_body(container: &Container, new: &NewRegistration) -> bool {
    container.id == new.id
        && container.source == new.source
        && *container.repos == *new.repos
        && container.auth_mode == new.auth_mode
        && container.allowed_domains() == new.allowed_domains.as_deref()
}
