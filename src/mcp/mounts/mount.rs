//! One server, and its sessions by lease.

use std::sync::{Arc, Weak};

use addons::contract::Container;
use addons::mcp::{ServerKind, ServerSettings};
use parking_lot::Mutex;

use super::changes::ListNews;
use super::known::Known;
use super::ports::{Clients, Common, Mounted};
use super::sessions::SessionSet;
use super::{Caller, MountError, MountHealth, Pooled, SessionKey};

/// A server of `mcp.yaml`, and its sessions. A reload replaces the mount of a changed server,
/// unless only `prefix`, the classifications or the server's place in the file changed.
pub struct Mount {
    pub(super) server: Arc<Mounted>,
    /// The sessions that all leases share, with `scope: shared`.
    shared: Arc<SessionSet>,
}

impl Mount {
    pub(super) fn new(server: &Arc<ServerSettings>, common: &Arc<Common>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::new(Mounted::new(server, common)),
            shared: Arc::default(),
        })
    }

    /// The server's settings.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.server.settings()
    }

    /// Whether all containers share its sessions.
    pub fn is_shared(&self) -> bool {
        self.server.is_shared()
    }

    /// Returns an open session for the revision and the capabilities of the caller; opens one if
    /// there is none, or returns another one if too many are open. Concurrent callers wait for the
    /// same session. Dropping the future does not cancel the opening.
    pub async fn session(self: &Arc<Self>, caller: &Caller) -> Result<Arc<Pooled>, MountError> {
        self.session_for(caller, true).await
    }

    /// Begins what the first session of a lease needs, and returns whether something was begun. Does
    /// nothing if all containers share the server's sessions, or the lease has one.
    pub(super) async fn prepare(self: &Arc<Self>, container: &Arc<Container>) -> bool {
        if self.is_shared() || self.set_of(container).is_in_use() {
            return false;
        }
        let (transport, retired) = (&self.server.transport, self.server.retired.clone());
        Arc::clone(transport)
            .prepare(Arc::clone(container), retired)
            .await
    }

    /// As [`Self::session`], but declares nothing to the server that the caller chose: returns any
    /// open session, or opens the same one for all callers.
    pub async fn undeclared_session(
        self: &Arc<Self>,
        caller: &Caller,
    ) -> Result<Arc<Pooled>, MountError> {
        self.session_for(caller, false).await
    }

    async fn session_for(
        self: &Arc<Self>,
        caller: &Caller,
        may_declare: bool,
    ) -> Result<Arc<Pooled>, MountError> {
        let set = self.set_of(&caller.container);
        let key = self.server.key_of(caller);
        let clients = |key| self.clients(caller, key);
        let opened = set.session(&self.server, key, may_declare, clients);
        let pooled = opened.await?;
        if self.is_shared() {
            pooled.catalog.request_for(&caller.container);
        }
        Ok(pooled)
    }

    /// The lists that were last read from the server for a container. They are kept even if no
    /// session is open now.
    pub fn known(self: &Arc<Self>, container: &Container) -> Known {
        self.set_of(container).known.lock().clone()
    }

    /// Whether this version implements the server's runtime. Otherwise no session can be opened,
    /// and the mount has no part in the health of the gateway.
    pub fn is_implemented(&self) -> bool {
        !matches!(self.settings().kind, ServerKind::E2b(_))
    }

    /// The health of the mount.
    pub fn health(&self) -> MountHealth {
        self.server.record.read(&self.settings().name)
    }

    pub(super) fn is_for(&self, container: &Container) -> bool {
        self.settings().is_for(&container.id)
    }

    /// Whether the settings `other` differ from the current ones at most in `prefix`, in the
    /// classifications and in their place in the file. If so, the sessions can continue.
    pub(super) fn keeps(&self, other: &ServerSettings) -> bool {
        let settings = self.settings();
        let same = ServerSettings {
            prefix: Arc::clone(&settings.prefix),
            classification: settings.classification,
            resources: settings.resources.clone(),
            prompts: settings.prompts.clone(),
            place: settings.place,
            ..other.clone()
        };
        same == *settings
    }

    fn clients(&self, caller: &Caller, key: SessionKey) -> Clients {
        let is_shared = self.is_shared();
        let news = match is_shared {
            true => &self.server.common.news,
            false => &LeaseMounts::of(&caller.container).news,
        };
        Clients {
            container: (!is_shared).then(|| Arc::clone(&caller.container)),
            requested_by: Arc::downgrade(&caller.container),
            news: Arc::clone(news),
            key,
        }
    }

    fn set_of(self: &Arc<Self>, container: &Container) -> Arc<SessionSet> {
        match self.is_shared() {
            true => Arc::clone(&self.shared),
            false => LeaseMounts::of(container).set_of(self),
        }
    }
}

/// A lease's sessions with all servers.
#[derive(Default)]
pub(super) struct LeaseMounts {
    sets: Mutex<Vec<(Weak<Mount>, Arc<SessionSet>)>>,
    /// Announces changes of lists to this lease.
    pub news: Arc<ListNews>,
}

impl LeaseMounts {
    pub fn of(container: &Container) -> &Self {
        container.state_or_init(Self::default)
    }

    fn set_of(&self, mount: &Arc<Mount>) -> Arc<SessionSet> {
        let mut sets = self.sets.lock();
        let is_same = |weak: &Weak<Mount>| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(mount));
        if let Some((_, set)) = sets.iter().find(|(weak, _)| is_same(weak)) {
            return Arc::clone(set);
        }
        // Drops the sets of mounts that a reload replaced or removed.
        sets.retain(|(mount, _)| mount.strong_count() > 0);
        let set = Arc::new(SessionSet::default());
        sets.push((Arc::downgrade(mount), Arc::clone(&set)));
        set
    }
}
