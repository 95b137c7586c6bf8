//! A flow under way, whose end is reported exactly once.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chain::Chain;
use super::container::Container;
use super::denial::Denial;
use super::flow::{FlowStart, Kind, OwnedFlow};
use super::outcome::Outcome;
use super::record::Record;

/// Holds a flow and its chain until the flow ends.
///
/// Dropping it reports the end to every addon, so that every flow is recorded, however it ends. A
/// flow that is dropped before [`LiveFlow::complete`] or [`LiveFlow::denied`] counts as aborted.
pub struct LiveFlow {
    /// The flow, as addons see it.
    pub flow: OwnedFlow,
    /// The chain that the flow began with and keeps until it ends, also over a reload. A call that a
    /// person approved is judged again by the chain that is in force then, and keeps that.
    pub chain: Arc<Chain>,
    /// The outcome if the flow ended now. The duration is set at the end.
    outcome: Outcome,
    ended: Option<Instant>,
}

impl LiveFlow {
    /// Begins a flow under a chain.
    #[must_use]
    pub fn begin(chain: &Arc<Chain>, start: FlowStart) -> Self {
        Self {
            flow: start.begin(),
            chain: Arc::clone(chain),
            outcome: Outcome {
                status: 0,
                denial: None,
                aborted: true,
                duration: Duration::ZERO,
            },
            ended: None,
        }
    }

    /// Facts for the audit that the engine adds: method, path, address.
    pub fn record(&mut self) -> &mut Record {
        &mut self.flow.record
    }

    /// Changes the kind of the flow to [`Kind::Websocket`]. Call it for a request whose head asks
    /// for that upgrade.
    pub fn opens_websocket(&mut self) {
        self.flow.start.kind = Kind::Websocket;
    }

    /// Sets the container of a flow that ends before the chain's identity link runs.
    pub fn belongs_to(&mut self, container: &Arc<Container>) {
        self.flow.start.principal = Some(Arc::clone(container).into());
    }

    /// Sets the container id that the head of a CONNECT claims.
    pub fn claims(&mut self, id: Option<Box<str>>) {
        self.flow.start.claimed_id = id;
    }

    /// Sets the status that the client gets.
    pub fn answered(&mut self, status: u16) {
        self.outcome.status = status;
    }

    /// The value of [`Outcome::status`] so far.
    pub fn status(&self) -> u16 {
        self.outcome.status
    }

    /// Marks the flow as ended by a denial, or by an addon's own response.
    pub fn denied(&mut self, denial: &Denial) {
        match denial.answer().filter(|_| !denial.refuses()) {
            Some(answer) => self.outcome.status = answer.status,
            None => {
                self.outcome.status = denial.code().status();
                self.outcome.denial = Some(denial.clone());
            }
        }
        self.outcome.aborted = false;
    }

    /// Marks the flow as ended normally. The end is reported when this value is dropped.
    pub fn complete(&mut self) {
        self.outcome.aborted = false;
    }

    /// Sets the time of the end. Without it, the time of the drop counts.
    pub fn ended_at(&mut self, time: Instant) {
        self.ended = Some(time);
    }
}

impl Deref for LiveFlow {
    type Target = OwnedFlow;

    fn deref(&self) -> &OwnedFlow {
        &self.flow
    }
}

impl Drop for LiveFlow {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or_else(Instant::now);
        self.outcome.duration = ended.saturating_duration_since(self.flow.started);
        self.chain.finished(&self.flow, &self.outcome);
    }
}
