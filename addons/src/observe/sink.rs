//! Where audit lines go.

use std::time::Instant;

/// Bytes that the log adds to each line: `"prev"`, the hash of the line before, and a newline.
pub const CHAIN_BYTES: usize = 75;

/// Takes audit lines. It must not block: it is called where flows end.
pub trait AuditSink: Send + Sync {
    /// Takes a line: one JSON object with no newline in it or behind it. `ended` is when the
    /// flow did, or when what was folded into the line was written.
    fn write(&self, line: &[u8], ended: Instant, to: Destination);
}

/// Where a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To those who watch flows as they end, and see every line by itself: what it says is over
    /// the budget, and gets to the log in a folded line.
    Live,
    /// To the log: it was folded.
    Log,
    /// To both.
    Both,
}
