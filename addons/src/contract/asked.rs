//! What a flow carries about which a person decides.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::Instant;

use super::approval::{ApprovalId, GrantId};
use super::level::Level;

/// A person approved the question about the call. The engine has the chain judge the call again,
/// and the grant answers the question if nothing else denies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved {
    /// The question.
    pub approval: ApprovalId,
    /// The grant, which is not used yet.
    pub grant: GrantId,
    /// See [`Question::digest`](super::Question::digest).
    pub digest: Box<str>,
    /// The security level that the person saw, up to which the approval holds.
    pub level: Level,
}

/// The approved executions that the message belongs to, by the digests of their questions: the call
/// itself, or the call that a client's retry or answer continues. They answer the same question
/// without another grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executing(pub Vec<Box<str>>);

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
