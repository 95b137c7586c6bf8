//! Attaches clients, so that they receive messages outside their calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use addons::contract::Container;
use tokio::sync::OwnedSemaphorePermit;

use super::attached::{Attached, Interest};
use super::lease::Lease;
use super::{Caller, Core, Events};

/// How long subscriptions at servers outlive the disconnection of a client, which may reconnect.
const LINGER: Duration = Duration::from_secs(2);

/// Keeps a client attached. Dropping it detaches the client.
pub struct Attachment {
    core: Weak<Core>,
    lease: Arc<Lease>,
    attached: Arc<Attached>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut attached = self.lease.attached.lock();
        attached.retain(|one| !Arc::ptr_eq(one, &self.attached));
        drop(attached);
        if let Some(core) = self.core.upgrade() {
            core.interest_changed(&self.lease, &self.attached.caller, LINGER);
        }
    }
}

impl Core {
    /// Takes room for the URIs of a subscription until the permit is dropped; `None` if the lease's
    /// clients are subscribed to too many, over `MAX_URI_BYTES`.
    pub fn take_uri_room(container: &Container, uris: &[String]) -> Option<OwnedSemaphorePermit> {
        Lease::of(container)
            .uri_room
            .take(uris.iter().map(String::as_str))
    }

    /// Attaches a client: from now on, messages that match `interest` go to `events`.
    pub fn attach(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        interest: Interest,
        events: Events,
    ) -> Attachment {
        let lease = Lease::of(&caller.container);
        let preferences = match interest {
            Interest::Everything => lease.preferences(caller),
            Interest::Filter(_) => Arc::default(),
        };
        let attached = Arc::new(Attached {
            caller: Arc::clone(caller),
            events,
            interest,
            preferences,
            open_requests: Arc::default(),
        });
        lease.attached.lock().push(Arc::clone(&attached));
        self.watch(lease, caller);
        self.interest_changed(lease, caller, Duration::ZERO);
        Attachment {
            core: Arc::downgrade(self),
            lease: Arc::clone(lease),
            attached,
        }
    }
}
