//! The registry of containers: a store that survives restarts, and its view in memory, which flows
//! read.

mod ended;
mod index;
mod maintenance;
mod problem;
mod repo_entry;
pub mod sqlite;
mod store;
mod tracked_store;
mod view;

use std::path::Path;
use std::slice;
use std::sync::Arc;

use addons::contract::{
    AuthMode, BoxFuture, Container, ContainerId, Containers, HostPattern, LeaseId, LeaseRecords,
    Registration, Repo, Source, Standing, Unavailable,
};
use parking_lot::Mutex;
use thiserror::Error;
use time::OffsetDateTime;
use tokio::sync::watch;

pub use repo_entry::RepoEntry;
pub use store::{LeaseStore, StoreError};
pub use view::{LISTENER_PREFIX, LeaseListener, LeaseListeners};

use problem::Problem;
use tracked_store::TrackedStore;
use view::View;

/// The registration of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegistration {
    pub id: ContainerId,
    pub source: Source,
    pub repos: Vec<Repo>,
    pub auth_mode: AuthMode,
    /// The patterns that narrow the allowlist; `None`: the whole allowlist applies.
    pub allowed_domains: Option<Vec<HostPattern>>,
    pub expires_at: OffsetDateTime,
}

impl NewRegistration {
    /// Returns the registration with a new lease id. Truncates the times to milliseconds, the
    /// resolution of the store, so that the row that is read from the store is equal.
    fn begin(self, now: OffsetDateTime) -> Registration {
        Registration {
            id: self.id,
            lease: LeaseId::generate(),
            source: self.source,
            repos: self.repos,
            auth_mode: self.auth_mode,
            created_at: now.truncate_to_millisecond(),
            expires_at: self.expires_at.truncate_to_millisecond(),
            allowed_domains: self.allowed_domains,
            standing: Standing::default(),
        }
    }
}

/// The result of a registration.
#[derive(Clone, Debug)]
pub struct Registered {
    pub container: Arc<Container>,
    /// Whether the registration extended the container's live lease instead of beginning a new one.
    pub extended: bool,
    /// The lease's Unix listener, if the registration has one.
    pub listener: Option<LeaseListener>,
    /// The containers whose leases ended because the new lease has their id or their source.
    pub replaced: Vec<ContainerId>,
}

/// Why a change failed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// The store cannot be read. Flows are then denied too, except while another process has locked
    /// the store for only a short time.
    #[error("Registry unavailable")]
    Unavailable,
    /// The store could be read, but the change could not be written. Flows continue.
    #[error("Registry cannot be written: {0}")]
    Unwritten(String),
}

impl From<Unavailable> for ChangeError {
    fn from(Unavailable: Unavailable) -> Self {
        Self::Unavailable
    }
}

/// The registry. While it is unavailable, look-ups fail with [`Unavailable`], and changes with
/// [`ChangeError::Unavailable`].
pub struct Registry {
    view: View,
    /// Locked on blocking threads, for one operation at a time. The view is changed under the same
    /// lock, except by `expire`. So the view and the store differ only by
    ///
    /// - changes that other processes made to the store,
    /// - the leases in `found_expired`, which are only in the store,
    /// - other expired leases, which have ended only in the view,
    /// - standings that could not be written.
    tracked: Mutex<TrackedStore>,
    problem: Problem,
    /// Leases that a flow found expired; the next round of maintenance deletes them from the store.
    found_expired: Mutex<Vec<Arc<Container>>>,
}

impl Registry {
    /// Opens the store, or creates it if it is missing. Never fails: a store that cannot be read is
    /// not touched, and the registry is unavailable until [`Registry::run`] can read it.
    ///
    /// Blocks; call it at start. `socket_dir` is the directory of the leases' sockets.
    pub fn open(store: impl LeaseStore + 'static, socket_dir: &Path) -> Arc<Self> {
        let registry = Arc::new(Self {
            view: View::new(socket_dir),
            tracked: Mutex::new(TrackedStore::new(Box::new(store))),
            problem: Problem::new("not read yet"),
            found_expired: Mutex::default(),
        });
        registry.start();
        registry
    }

    /// Why the registry is unavailable; `None` while it is available.
    pub fn problem(&self) -> Option<Arc<String>> {
        self.problem.get()
    }

    /// Registers a container. Ends the leases with the same id or source. If the registration
    /// changes nothing but the expiry of the container's live lease, extends that lease instead. A
    /// new lease has the security level and the abort latch of the container's earlier leases. The
    /// lease is on disk before the future is ready.
    pub async fn register(
        self: &Arc<Self>,
        new: NewRegistration,
    ) -> Result<Registered, ChangeError> {
        self.change(move |registry, tracked| {
            let now = OffsetDateTime::now_utc();
            let expires_at = new.expires_at;
            let mut begun = new.begin(now);
            let present = registry.view.get(&begun.id);
            let same =
                present.filter(|old| old.is_live(now) && view::has_same_registration(old, &begun));
            let extended = same.is_some();
            let mut replaced = Vec::new();
            let container = match same {
                Some(container) => {
                    tracked.store.extend(container.lease, expires_at)?;
                    container.extend(expires_at);
                    container
                }
                None => {
                    replaced = registry.view.replaced_by(&begun, now);
                    let evicted = registry.view.find(&begun.source);
                    if let Some(evicted) = evicted.filter(|old| old.id != begun.id) {
                        tracked.end(&[evicted])?;
                    }
                    begun.standing = registry.standing_in_memory(&begun.id);
                    tracked.begin(slice::from_mut(&mut begun))?;
                    registry.view.insert(begun)
                }
            };
            let listener = registry.view.listener(&container);
            Ok(Registered {
                container,
                extended,
                listener,
                replaced,
            })
        })
        .await
    }

    /// Ends a container's lease and deletes it, with the container's security level and abort latch.
    /// Returns `false` if the registry has neither a lease nor a raised level or latch.
    pub async fn unregister(self: &Arc<Self>, id: ContainerId) -> Result<bool, ChangeError> {
        self.change(move |registry, tracked| {
            let removed = tracked.remove(&id)?;
            registry.found_expired.lock().retain(|ended| ended.id != id);
            let container = registry.view.get(&id);
            if let Some(container) = &container {
                registry.view.remove(container);
            }
            registry.view.ended.unregister(&id);
            Ok(removed || container.is_some())
        })
        .await
    }

    /// Ends a container's lease and deletes it. The container's security level and abort latch stay
    /// for its next lease, as after an expiry. Returns `false` if the registry has no lease.
    pub async fn end_lease(self: &Arc<Self>, id: ContainerId) -> Result<bool, ChangeError> {
        self.change(move |registry, tracked| {
            let Some(container) = registry.view.get(&id) else {
                return Ok(false);
            };
            tracked.end(slice::from_ref(&container))?;
            registry.view.remove(&container);
            Ok(true)
        })
        .await
    }

    /// Lowers a container's security level to `Public` and clears its abort latch. Returns the
    /// container; `None` if it has no live lease.
    pub async fn reset(
        self: &Arc<Self>,
        id: ContainerId,
    ) -> Result<Option<Arc<Container>>, ChangeError> {
        self.change(move |registry, tracked| {
            let now = OffsetDateTime::now_utc();
            let Some(container) = registry.view.get(&id).filter(|found| found.is_live(now)) else {
                return Ok(None);
            };
            tracked.set_standing(&id, Standing::default())?;
            let expired = registry.found_expired.lock();
            let expired = expired.iter().filter(|ended| ended.id == id);
            expired.for_each(|ended| ended.reset_standing());
            container.reset_standing();
            Ok(Some(container))
        })
        .await
    }

    /// The live lease of a container; `None` if the container has no live lease.
    pub fn get(&self, id: &ContainerId) -> Result<Option<Arc<Container>>, Unavailable> {
        self.readable()?;
        let now = OffsetDateTime::now_utc();
        Ok(self.view.get(id).filter(|found| found.is_live(now)))
    }

    /// Every live lease, sorted by container id.
    pub fn list(&self) -> Result<Vec<Arc<Container>>, Unavailable> {
        self.readable()?;
        let now = OffsetDateTime::now_utc();
        let mut live = self.view.filter(|container| container.is_live(now));
        live.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(live)
    }

    /// Every lease in memory, also while the registry is unavailable.
    pub fn in_memory(&self) -> Vec<Arc<Container>> {
        self.view.filter(|_| true)
    }

    pub fn count(&self) -> usize {
        let now = OffsetDateTime::now_utc();
        self.view.count(|container| container.is_live(now))
    }

    /// Subscribes to the Unix listeners that should be open.
    pub fn subscribe_listeners(&self) -> watch::Receiver<LeaseListeners> {
        self.view.listeners()
    }

    /// The standing of a container's leases in memory, which may not have been written yet.
    fn standing_in_memory(&self, id: &ContainerId) -> Standing {
        let present = self.view.get(id).map(|present| present.standing());
        let expired = self.found_expired.lock();
        let expired = expired
            .iter()
            .filter(|ended| ended.id == *id && !self.view.ended.is_unregistered(ended.lease));
        expired
            .map(|ended| ended.standing())
            .chain(present)
            .fold(Standing::default(), Standing::and)
    }

    fn readable(&self) -> Result<(), Unavailable> {
        match self.available() {
            true => Ok(()),
            false => Err(Unavailable),
        }
    }

    /// Changes the store and the view on a blocking thread. First syncs with the store, so that
    /// changes by other processes are read first, and a store that cannot be read is not written
    /// to. The change completes even if the caller drops the future.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&Self, &mut TrackedStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ChangeError> {
        self.readable()?;
        let registry = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut tracked = registry.tracked.lock();
            registry.refresh(&mut tracked, false)?;
            change(&registry, &mut tracked).map_err(|error| {
                tracing::error!(%error, "the registry could not be written");
                ChangeError::Unwritten(error.to_string())
            })
        });
        done.await.unwrap_or(Err(ChangeError::Unavailable))
    }
}

/// Writes a container's standing to the registry when an MCP message tightens it. The standing is
/// the security level and the abort latch.
pub struct RegistryRecords(pub Arc<Registry>);

impl LeaseRecords for RegistryRecords {
    /// After success, the change is in force and on disk. [`Unavailable`] has two meanings: if the
    /// store could not be read, nothing has changed. If it could be read but not written, the
    /// change is in force, and the next round of maintenance tries to write it.
    fn reach<'a>(
        &'a self,
        container: &'a Arc<Container>,
        reached: Standing,
    ) -> BoxFuture<'a, Result<(), Unavailable>> {
        let container = Arc::clone(container);
        let written = self.0.change(move |registry, tracked| {
            // Tightened before the write, so that it is in force even if the write fails.
            container.reach(reached);
            // An operator has forgotten the standing of the container's id. A row for it would never
            // be deleted, and would raise the level of a later container with this id.
            if registry.view.ended.is_unregistered(container.lease) {
                return Ok(());
            }
            // The lease may have been replaced meanwhile. A standing belongs to the container's id.
            let current = registry.view.get(&container.id);
            let current = current.as_ref().unwrap_or(&container);
            current.reach(reached);
            tracked.set_standing(&current.id, current.standing())
        });
        // `change` has logged the error if the write failed.
        Box::pin(async { written.await.map_err(|_| Unavailable) })
    }
}

impl Containers for Registry {
    fn find(&self, source: &Source) -> Result<Option<Arc<Container>>, Unavailable> {
        self.readable()?;
        Ok(self.view.find(source))
    }

    fn available(&self) -> bool {
        !self.problem.is_there()
    }

    fn expire(&self, container: &Arc<Container>) {
        // In this order, so that `standing_in_memory` finds the container in one of both.
        self.found_expired.lock().push(Arc::clone(container));
        self.view.remove(container);
    }
}
