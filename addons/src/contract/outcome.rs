//! How a flow ended.

use std::time::Duration;

use super::denial::Denial;

/// How a flow ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The status that the client got; 0 if it got none.
    pub status: u16,
    /// The denial that ended the flow; `None` also for an addon's own answer.
    pub denial: Option<Denial>,
    /// Whether the flow ended early: one side closed the connection, or the lease ended.
    pub aborted: bool,
    /// The time from the flow's beginning to its end.
    pub duration: Duration,
}

impl Outcome {
    /// Every value of [`Outcome::label`].
    pub const LABELS: [&'static str; 4] = ["ok", "denied", "failed", "aborted"];

    /// `ok`, `denied`, `failed` or `aborted`, as metrics and the audit write it.
    pub fn label(&self) -> &'static str {
        use super::denial::Fault;
        match &self.denial {
            Some(denial) => match denial.code().fault() {
                Fault::Policy | Fault::Client => "denied",
                Fault::Upstream | Fault::Us => "failed",
            },
            None if self.aborted => "aborted",
            None => "ok",
        }
    }
}
