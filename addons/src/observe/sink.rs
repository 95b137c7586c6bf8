//! The sink of audit lines.

/// Bytes that the log adds to each line: `"prev"`, the hash of the previous line, and a line feed.
pub const CHAIN_BYTES: usize = 75;

/// Takes audit lines. Must not block, since threads that serve connections call it as flows end.
pub trait AuditSink: Send + Sync {
    /// Takes a line: one JSON object without a line feed.
    fn write(&self, line: &[u8], to: Destination);
}

/// The recipients of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Live viewers only: the line is over the budget, and reaches the log in a folded line.
    Live,
    /// The log only: a folded line, whose flows live viewers have seen already.
    Log,
    /// The log and live viewers.
    Both,
}
