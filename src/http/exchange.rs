//! Requests under way: [`Exchange`] for a request with a flow, and [`UnderWay`] for a request that
//! the proxy answers itself.

use std::sync::Arc;
use std::time::Instant;

use addons::contract::{FlowStart, LiveFlow};

use super::session::Session;
use crate::snapshot::Snapshot;

/// A request with its flow. The request counts as under way on its connection until the exchange is
/// dropped. The body of the response or the relay of the WebSocket owns the exchange. The exchange
/// of a denied request is dropped when the response with the denial has been built.
pub struct Exchange {
    pub live: LiveFlow,
    /// The snapshot that was in force when the flow began, kept across reloads.
    pub snapshot: Arc<Snapshot>,
    pub session: Arc<Session>,
}

impl Exchange {
    pub fn begin(session: Arc<Session>, snapshot: Arc<Snapshot>, start: FlowStart) -> Box<Self> {
        session.idle.begin(start.started.into());
        let live = LiveFlow::begin(snapshot.chain(), start);
        Box::new(Self {
            live,
            snapshot,
            session,
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let now = Instant::now();
        // If the lease ended before the response, the end of the lease, not the client, aborted the
        // request.
        if self.live.status() == 0
            && let Err(denial) = self.session.is_live()
        {
            self.live.denied(&denial);
        }
        self.live.ended_at(now);
        self.session.idle.end(now.into());
    }
}

/// Counts a request without an exchange as under way on its connection until this is dropped.
pub struct UnderWay(pub Arc<Session>);

impl UnderWay {
    pub fn begin(session: &Arc<Session>, started: Instant) -> Self {
        session.idle.begin(started.into());
        Self(Arc::clone(session))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle.end(Instant::now().into());
    }
}
