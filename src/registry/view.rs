//! The registrations in memory: all that a flow ever reads.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{Container, ContainerId, Registration, Source};
use dashmap::DashMap;
use time::OffsetDateTime;
use tokio::sync::{SetOnce, watch};

use super::NewRegistration;

/// A Unix listener that one container has for its own.
#[derive(Clone, Debug)]
pub struct OwnListener {
    /// Whose it is; close the socket when its lease ends.
    pub container: Arc<Container>,
    /// Where it listens.
    pub socket: PathBuf,
    /// Whether it could be opened, once that has been tried.
    pub opened: Arc<SetOnce<bool>>,
}

/// The listeners that should be open, by lease.
pub type OwnListeners = BTreeMap<u64, OwnListener>;

/// Every change costs the same, however many containers there are.
pub(super) struct View {
    by_source: DashMap<Source, Arc<Container>>,
    by_id: DashMap<ContainerId, Arc<Container>>,
    listeners: watch::Sender<OwnListeners>,
    socket_dir: PathBuf,
}

impl View {
    pub(super) fn new(socket_dir: &Path) -> Self {
        Self {
            by_source: DashMap::new(),
            by_id: DashMap::new(),
            listeners: watch::Sender::default(),
            socket_dir: socket_dir.to_owned(),
        }
    }

    pub(super) fn find(&self, source: &Source) -> Option<Arc<Container>> {
        self.by_source.get(source).map(|found| Arc::clone(&found))
    }

    pub(super) fn get(&self, id: &ContainerId) -> Option<Arc<Container>> {
        self.by_id.get(id).map(|found| Arc::clone(&found))
    }

    pub(super) fn all_that(&self, wanted: impl Fn(&Container) -> bool) -> Vec<Arc<Container>> {
        let entries = self.by_id.iter().filter(|entry| wanted(entry));
        entries.map(|entry| Arc::clone(&entry)).collect()
    }

    pub(super) fn count(&self, wanted: impl Fn(&Container) -> bool) -> usize {
        self.by_id.iter().filter(|entry| wanted(entry)).count()
    }

    pub(super) fn listeners(&self) -> watch::Receiver<OwnListeners> {
        self.listeners.subscribe()
    }

    /// The listener that a lease has for its own.
    pub(super) fn listener(&self, container: &Container) -> Option<OwnListener> {
        self.listeners.borrow().get(&container.lease).cloned()
    }

    fn socket(&self, container: &Container) -> Option<PathBuf> {
        match container.source {
            Source::Address(_) => None,
            // A number, not the id: a socket's path holds 107 bytes.
            Source::Listener(_) => {
                let name = format!("sandbox-{}.sock", container.lease);
                Some(self.socket_dir.join(name))
            }
        }
    }

    /// Puts a lease in; whoever had its id or its source ends.
    pub(super) fn insert(&self, registration: Registration) -> Arc<Container> {
        let container = Arc::new(Container::new(registration));
        let same_id = self
            .by_id
            .insert(container.id.clone(), Arc::clone(&container));
        let same_source = self
            .by_source
            .insert(container.source.clone(), Arc::clone(&container));
        for old in [same_id, same_source].into_iter().flatten() {
            self.remove(&old);
        }
        if let Some(socket) = self.socket(&container) {
            let listener = OwnListener {
                container: Arc::clone(&container),
                socket,
                opened: Arc::default(),
            };
            self.listeners.send_modify(|listeners| {
                listeners.insert(container.lease, listener);
            });
        }
        container
    }

    /// Takes exactly this lease out, wherever it still stands, and ends it.
    pub(super) fn remove(&self, container: &Arc<Container>) {
        let same = |found: &Arc<Container>| Arc::ptr_eq(found, container);
        self.by_source
            .remove_if(&container.source, |_, found| same(found));
        self.by_id.remove_if(&container.id, |_, found| same(found));
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

    /// Makes the view like the file. A lease that is the same keeps its `Container`, and with it
    /// what it owns; one that is gone ends.
    pub(super) fn follow(&self, registrations: Vec<Registration>) {
        let leases: HashSet<u64> = registrations.iter().map(|row| row.lease).collect();
        for container in self.all_that(|container| !leases.contains(&container.lease)) {
            self.remove(&container);
        }
        for row in registrations {
            match self.get(&row.id) {
                Some(container) if is_same_lease(&container, &row) => {
                    container.extend(row.expires_at);
                    container.raise_level(row.level);
                }
                _ => {
                    self.insert(row);
                }
            }
        }
    }

    /// Ends what is over. A lease that the clock ended too early, by a jump that was taken back,
    /// begins again: only time ends a lease that still stands here.
    pub(super) fn keep_time(&self, now: OffsetDateTime) {
        let mut revived = Vec::new();
        for entry in &self.by_id {
            if entry.expired(now) {
                entry.end();
            } else if entry.ended().is_cancelled() {
                revived.push(Arc::clone(&entry));
            }
        }
        for container in revived {
            self.insert(Registration {
                id: container.id.clone(),
                lease: container.lease,
                source: container.source.clone(),
                repos: container.repos.clone(),
                auth_mode: container.auth_mode,
                created_at: container.created_at,
                expires_at: container.expires_at(),
                allowed_domains: container.allowed_domains.clone(),
                level: container.level(),
            });
        }
    }
}

fn is_same_lease(container: &Container, row: &Registration) -> bool {
    container.lease == row.lease
        && container.id == row.id
        && container.source == row.source
        && container.repos == row.repos
        && container.auth_mode == row.auth_mode
        && container.created_at == row.created_at
        && container.allowed_domains == row.allowed_domains
}

/// Whether the body is the one that the lease began with, but for its expiry.
pub(super) fn is_same_body(container: &Container, new: &NewRegistration) -> bool {
    container.id == new.id
        && container.source == new.source
        && container.repos == new.repos
        && container.auth_mode == new.auth_mode
        && container.allowed_domains == new.allowed_domains
}
