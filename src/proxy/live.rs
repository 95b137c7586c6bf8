//! A flow under way, which is finished exactly once whatever becomes of it.

use std::sync::Arc;

use addons::contract::{Chain, Denial, Flow, Outcome};

/// Holds a flow until it ends. Dropping it tells the chain, so there is no path on which a flow
/// ends unrecorded; until [`LiveFlow::complete`] was called it counts as aborted.
pub struct LiveFlow {
    pub flow: Flow,
    chain: Arc<Chain>,
    status: u16,
    denial: Option<Denial>,
    completed: bool,
}

impl LiveFlow {
    pub fn new(flow: Flow, chain: Arc<Chain>) -> Self {
        Self {
            flow,
            chain,
            status: 0,
            denial: None,
            completed: false,
        }
    }

    /// The chain that this flow began with and keeps.
    pub fn chain(&self) -> Arc<Chain> {
        Arc::clone(&self.chain)
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
        let outcome = Outcome {
            status: self.status,
            denial: self.denial.take(),
            aborted: !self.completed,
            duration: self.flow.started.elapsed(),
        };
        self.chain.finished(&self.flow, &outcome);
    }
}
