//! How a flow ended.

use std::time::Duration;

use super::denial::Denial;

/// How a flow ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The HTTP status of the response, or the response code of a DNS answer. A denied flow other
    /// than a DNS question has the status of the denial's code, even if the client got the status
    /// of an [`Answer`](super::Answer). 0 if the flow ended without a status or response code.
    pub status: u16,
    /// The denial that ended the flow; `None` for an addon's own response, which is no refusal.
    pub denial: Option<Denial>,
    /// Whether the flow ended early, for example because one side closed the connection.
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
