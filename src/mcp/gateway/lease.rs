//! Sessions, streams and suspended calls of one lease.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::Container;
use parking_lot::Mutex;

use super::intercept::OwnDenials;
use super::legacy::{KeptBytes, LegacySession, Transport};
use super::limits::{Count, GatewayMetrics, MAX_SESSIONS};
use super::modern::Suspended;

/// The gateway's state of a lease, owned by the lease's container. The sessions and calls in it
/// hold handles to the container, so the state is emptied when the lease ends, to break the cycle.
#[derive(Default)]
pub struct LeaseState {
    sessions: Mutex<Sessions>,
    session_count: Count,
    /// Counts the streams that wait for events.
    pub streams: Count,
    /// Calls that wait for their client's retry.
    pub suspended: Arc<Suspended>,
    /// Counts the bytes of events that are kept for clients that reconnect.
    pub kept: KeptBytes,
    /// The blocks of the interceptor API.
    pub own_denials: OwnDenials,
}

#[derive(Default)]
struct Sessions {
    open: HashMap<Arc<str>, Arc<LegacySession>>,
    ended: bool,
}

impl LeaseState {
    /// The state of a container's lease; created on first use.
    pub fn of(container: &Arc<Container>) -> Arc<Self> {
        let made = || {
            let state = Arc::new(Self::default());
            let (ended, emptied) = (container.ended().clone(), Arc::clone(&state));
            tokio::spawn(async move {
                ended.cancelled().await;
                emptied.end();
            });
            state
        };
        Arc::clone(container.state_or_init(made))
    }

    /// Opens a session with this id. If [`MAX_SESSIONS`] are open, closes the session that has been
    /// idle for longest to make room. Returns `None` if no session is idle then, or if the lease has
    /// ended.
    pub fn open_session(
        &self,
        id: &str,
        transport: Transport,
        metrics: &GatewayMetrics,
    ) -> Option<Arc<LegacySession>> {
        let mut sessions = self.sessions.lock();
        if sessions.ended {
            return None;
        }
        if sessions.open.len() >= MAX_SESSIONS {
            metrics.hit("sessions");
            let idle = sessions.open.values().filter_map(|session| {
                let since = session.idle_since()?;
                Some((since, Arc::clone(&session.id)))
            });
            let (_, idlest) = idle.min()?;
            close(&mut sessions.open, &idlest);
        }
        // Only for the gauge: the limit is checked above.
        let counted = self.session_count.enter(usize::MAX, &metrics.sessions)?;
        let session = LegacySession::new(id, transport, Arc::clone(&self.kept), counted);
        let opened = Arc::clone(&session);
        sessions.open.insert(Arc::clone(&session.id), opened);
        Some(session)
    }

    /// Finds the session of this lease with this id and transport, and marks it as used; `None` if
    /// there is no such session.
    pub fn find_session(&self, id: &str, transport: Transport) -> Option<Arc<LegacySession>> {
        let found = self.sessions.lock().open.get(id).cloned()?;
        let session = Some(found).filter(|found| found.transport == transport)?;
        session.touch();
        Some(session)
    }

    /// Ends the session with this id, if there is one.
    pub fn close_session(&self, id: &str) {
        close(&mut self.sessions.lock().open, id);
    }

    fn end(&self) {
        let mut sessions = self.sessions.lock();
        sessions.ended = true;
        for (_, session) in sessions.open.drain() {
            session.ended.cancel();
        }
        drop(sessions);
        self.suspended.end();
    }
}

fn close(open: &mut HashMap<Arc<str>, Arc<LegacySession>>, id: &str) {
    if let Some(session) = open.remove(id) {
        session.ended.cancel();
    }
}
