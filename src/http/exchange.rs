//! A request under way.

use std::sync::Arc;
use std::time::Instant;

use addons::contract::{FlowStart, LiveFlow};

use super::session::Session;
use crate::snapshot::Snapshot;

/// A request's flow, which its connection counts as under way until it ends. The body of the
/// answer carries it.
pub struct Exchange {
    pub live: LiveFlow,
    /// What the flow began with and keeps until it ends, whatever is reloaded meanwhile.
    pub snapshot: Arc<Snapshot>,
    pub session: Arc<Session>,
}

impl Exchange {
    /// Begins the flow of a request.
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
        // What the lease's end cut off before there was an answer.
        if self.live.status() == 0
            && let Err(denial) = self.session.is_live()
        {
            self.live.denied(&denial);
        }
        self.live.ended_at(now);
        self.session.idle.end(now.into());
    }
}
