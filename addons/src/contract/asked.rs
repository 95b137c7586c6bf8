//! What a flow carries about which a person decides.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::level::Level;

/// The execution of a call that a person approved. It is in the flow of the call itself, and of a
/// client's retry or answer that continues it, and answers the same question without another grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executing {
    /// See [`Question::digest`](super::Question::digest).
    pub digest: Box<str>,
    /// The highest security level of the container at which it answers: the level of the question
    /// or, if that is higher, the tool's classification, which the execution itself reaches.
    pub level: Level,
    /// Whether the flow continues the suspended call, so that the client's answers in it belong to
    /// what was approved.
    pub continues: bool,
}

/// The approval that decides on a flow, for the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApprovalRecord {
    /// The id of the question that a person decides, or of the grant that permits the flow.
    pub id: Option<Box<str>>,
    /// How long the flow was held for a person's decision; `None` if it was not held.
    pub waited: Option<Duration>,
}

impl ApprovalRecord {
    /// Records the question or the grant, in place of an earlier one.
    pub fn set(&mut self, id: impl Display) {
        self.id = Some(id.to_string().into());
    }

    /// Awaits a person's decision, and adds the time to [`waited`](Self::waited), also if the future
    /// is dropped because the client has gone.
    pub async fn while_held<F: Future>(&mut self, decision: F) -> F::Output {
        let _held = Held {
            begun: Instant::now(),
            waited: self.waited.get_or_insert_default(),
        };
        decision.await
    }
}

struct Held<'r> {
    begun: Instant,
    waited: &'r mut Duration,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.waited = self.waited.saturating_add(self.begun.elapsed());
    }
}
