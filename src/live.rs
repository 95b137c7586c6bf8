//! A flow under way, which is finished exactly once whatever becomes of it.

use std::sync::Arc;
use std::time::Instant;

use addons::contract::{Denial, Flow, Outcome};

use crate::ingress::connection::Connection;
use crate::snapshot::Snapshot;

/// Holds a flow until it ends. Dropping it tells the chain, so there is no path on which a flow
/// ends unrecorded; until [`LiveFlow::complete`] was called it counts as aborted.
pub struct LiveFlow {
    pub flow: Flow,
    /// What the flow began with and keeps until it ends, whatever is reloaded meanwhile.
    pub snapshot: Arc<Snapshot>,
    status: u16,
    denial: Option<Denial>,
    completed: bool,
    /// When it ended, where that is known better than by its drop.
    ended: Option<Instant>,
}

impl LiveFlow {
    pub fn new(flow: Flow, snapshot: Arc<Snapshot>) -> Self {
        Self {
            flow,
            snapshot,
            status: 0,
            denial: None,
            completed: false,
            ended: None,
        }
    }

    /// The status that the client gets.
    pub fn answered(&mut self, status: u16) {
        self.status = status;
    }

    /// Ended by a denial, or by an addon's own answer.
    pub fn denied(&mut self, denial: &Denial) {
        match denial.answer().filter(|_| !denial.refuses()) {
            Some(answer) => self.status = answer.status,
            None => {
                self.status = denial.code().status();
                self.denial = Some(denial.clone());
            }
        }
        self.completed = true;
    }

    /// Ended as it should.
    pub fn complete(&mut self) {
        self.completed = true;
    }
}

impl Drop for LiveFlow {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or_else(Instant::now);
        let outcome = Outcome {
            status: self.status,
            denial: self.denial.take(),
            aborted: !self.completed,
            duration: ended.saturating_duration_since(self.flow.started),
        };
        self.snapshot.chain.finished(&self.flow, &outcome);
    }
}

/// A request's flow, which its connection counts as under way until it ends. The body of the
/// answer carries it.
pub struct Exchange {
    pub live: LiveFlow,
    pub connection: Arc<Connection>,
}

impl Exchange {
    pub fn begin(connection: Arc<Connection>, flow: Flow, snapshot: Arc<Snapshot>) -> Box<Self> {
        connection.idle.begin(flow.started.into());
        let live = LiveFlow::new(flow, snapshot);
        Box::new(Self { live, connection })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let now = Instant::now();
        // What the lease's end cut off before there was an answer.
        if self.live.status == 0
            && let Err(denial) = self.connection.is_live()
        {
            self.live.denied(&denial);
        }
        self.live.ended = Some(now);
        self.connection.idle.end(now.into());
    }
}
