//! An open session, which several clients can share, and its server's lists.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::{BoxFuture, CallPermit, LeaseId};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::catalog::Catalog;
use super::ports::Mounted;
use super::{Caller, Described, Events, MountError, MountSession, Outcome, SessionKey};

/// The most requests of one session that may be under way at once.
pub const MAX_CALLS: u32 = 256;

/// The most requests of one container that may be under way at once in a session that all
/// containers share: a quarter, so that the others keep their share.
const MAX_SHARED_CALLS: u32 = MAX_CALLS / 4;

/// An open session and its server's lists.
pub struct Pooled {
    /// The session. Fails a request with [`MountError::Busy`] if [`MAX_CALLS`] are under way, if the
    /// container has `MAX_SHARED_CALLS` under way in a shared session, or if the gateway is ending
    /// the session.
    pub session: Arc<dyn MountSession>,
    /// The server's lists.
    pub catalog: Catalog,
    /// Takes the server's messages that belong to no request. The queues for the messages of
    /// subscriptions are created with `Events::another`, so they are charged to the same memory.
    pub unsolicited: Events,
    /// What the session declares about its clients.
    pub(super) key: SessionKey,
    pub(super) mount: Arc<Mounted>,
    /// Has [`MAX_CALLS`] permits, one for each request under way. Closed when the gateway ends the
    /// session.
    pub(super) calls: Arc<Semaphore>,
}

impl Pooled {
    /// Whether the session was opened for clients like this one, not only used by it.
    pub fn serves(&self, caller: &Caller) -> bool {
        self.mount.key_of(caller) == self.key
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.available_permits() == MAX_CALLS as usize
    }
}

/// A session whose requests are counted and whose failures are recorded in the mount's health.
pub(super) struct Counted {
    pub session: Arc<dyn MountSession>,
    /// See [`Pooled::calls`].
    pub calls: Arc<Semaphore>,
    /// The mount whose health records the outcomes of requests.
    pub mount: Arc<Mounted>,
    /// In a shared session, the number of requests under way by lease.
    pub by_lease: Mutex<HashMap<LeaseId, u32>>,
}

impl Counted {
    /// Counts a request of a lease as under way until the guard is dropped. `None` if
    /// [`MAX_SHARED_CALLS`] are under way.
    fn share(&self, lease: LeaseId) -> Option<Share<'_>> {
        let mut by_lease = self.by_lease.lock();
        let under_way = by_lease.entry(lease).or_default();
        let next = under_way.checked_add(1);
        *under_way = next.filter(|next| *next <= MAX_SHARED_CALLS)?;
        Some(Share(self, lease))
    }
}

/// A request under way in a shared session.
struct Share<'a>(&'a Counted, LeaseId);

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let Self(counted, lease) = self;
        let mut by_lease = counted.by_lease.lock();
        match by_lease.get_mut(lease) {
            Some(under_way) if *under_way > 1 => *under_way = under_way.saturating_sub(1),
            _ => drop(by_lease.remove(lease)),
        }
    }
}

impl MountSession for Counted {
    fn described(&self) -> &Described {
        self.session.described()
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let Ok(_counted) = self.calls.try_acquire() else {
                return Err(MountError::Busy);
            };
            let container = permit.container().filter(|_| self.mount.is_shared());
            let share = container.map(|container| self.share(container.lease));
            if let Some(None) = share {
                return Err(MountError::Busy);
            }
            let outcome = self.session.request(permit, events).await;
            match &outcome {
                Ok(_) => self.mount.record.called(None),
                Err(error) if error.is_of_server() => self.mount.record.called(Some(error)),
                // A slow tool or a denial is no failure of the server; `HealthRecord::ended`
                // records the end of a session.
                Err(_) => {}
            }
            outcome
        })
    }

    fn check_definition(&self, tool: &RawValue) -> Result<(), String> {
        self.session.check_definition(tool)
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        self.session.notify(permit)
    }

    fn is_built_in(&self) -> bool {
        self.session.is_built_in()
    }

    fn why_ended(&self) -> Option<String> {
        self.session.why_ended()
    }

    fn ended(&self) -> &CancellationToken {
        self.session.ended()
    }
}
