//! An open session, which several clients can share, and its server's lists.

use std::sync::Arc;

use addons::contract::{BoxFuture, CallPermit};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::catalog::Catalog;
use super::ports::Mounted;
use super::{Described, Events, MountError, MountSession, Outcome};

/// The most requests of one session that may be under way at once.
pub const MAX_CALLS: u32 = 256;

/// An open session and its server's lists.
pub struct Pooled {
    /// The session. Fails a request with [`MountError::Busy`] if [`MAX_CALLS`] are under way or the
    /// gateway is ending the session.
    pub session: Arc<dyn MountSession>,
    /// The server's lists.
    pub catalog: Catalog,
    /// Takes the server's messages that belong to no request. The queues for the messages of
    /// subscriptions are created with `Events::another`, so they are charged to the same memory.
    pub unsolicited: Events,
    /// Has [`MAX_CALLS`] permits, one for each request under way. Closed when the gateway ends the
    /// session.
    pub(super) calls: Arc<Semaphore>,
}

impl Pooled {
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
