//! The sink of audit lines.

use std::time::Instant;

/// Bytes that the log adds to each line: `"prev"`, the hash of the previous line, and a line feed.
pub const CHAIN_BYTES: usize = 75;

/// Takes audit lines. It must not block, since it is called as flows end.
pub trait AuditSink: Send + Sync {
    /// Takes a line: one JSON object without a line feed. `ended` is when the flow ended, or when a
    /// folded line was written.
    fn write(&self, line: &[u8], ended: Instant, to: Destination);
}

/// The readers of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Live viewers only: the line is over the budget, and reaches the log in a folded line.
    Live,
    /// The log only: a folded line, whose flows live viewers have seen already.
    Log,
    /// The log and live viewers.
    Both,
}
