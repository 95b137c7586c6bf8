//! Finds request heads with more lines than hyper reads by default.
//!
//! hyper reads up to 100 header lines at no cost. With a higher limit it prepares memory for as
//! many lines as the limit allows, for every head: 256 lines take 3,000 instructions. So a
//! connection gets the higher limit when a client sends a head that needs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::http::IdleTracker;

/// The lines of a head that hyper reads by default: the request line, 100 header lines and the
/// empty line.
const DEFAULT_LINES: usize = 102;

/// The lines of the head that is arriving on an HTTP/1.1 connection. A single thread uses it.
pub struct HeadLines {
    idle: Arc<IdleTracker>,
    lines: AtomicUsize,
    /// The latest request has a body, which may still arrive after the response. Lines of a body
    /// are not counted.
    has_body: AtomicBool,
    /// The connection ended or became a tunnel, or a long head has been found.
    is_off: AtomicBool,
    had_long: AtomicBool,
}

impl HeadLines {
    pub fn new(idle: Arc<IdleTracker>) -> Arc<Self> {
        Arc::new(Self {
            idle,
            lines: AtomicUsize::new(0),
            has_body: AtomicBool::new(false),
            is_off: AtomicBool::new(false),
            had_long: AtomicBool::new(false),
        })
    }

    /// Notes that a head is complete.
    pub fn request(&self, has_body: bool) {
        self.lines.store(0, Ordering::Relaxed);
        self.has_body.store(has_body, Ordering::Relaxed);
    }

    /// Whether the latest request has a body.
    pub fn has_body(&self) -> bool {
        self.has_body.load(Ordering::Relaxed)
    }

    /// Counts no further lines.
    pub fn stop(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection needs the higher limit, and counts no further lines.
    pub fn note_long(&self) {
        self.had_long.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Whether the connection needs the higher limit.
    pub fn had_long(&self) -> bool {
        self.had_long.load(Ordering::Relaxed)
    }

    /// Notes bytes of the client. Returns whether the head is now too long for hyper's default.
    /// Does not count bytes that arrive during a request, or after a request with a body, of which
    /// they may be the rest. The first long head of a connection gets 431 if it arrives then.
    pub fn read(&self, bytes: &[u8]) -> bool {
        let is_off = self.is_off.load(Ordering::Relaxed);
        if is_off || self.has_body() || !self.idle.is_idle() {
            return false;
        }
        let more = bytes.iter().filter(|byte| **byte == b'\n').count();
        let lines = self.lines.load(Ordering::Relaxed) + more;
        self.lines.store(lines, Ordering::Relaxed);
        lines > DEFAULT_LINES
    }

    /// Whether [`HeadLines::read`] has returned true for the head that is arriving.
    pub fn is_long(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed) && self.lines.load(Ordering::Relaxed) > DEFAULT_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_heads_are_counted_and_lines_of_bodies_are_not() {
        let heads = HeadLines::new(Arc::new(IdleTracker::new()));
        assert!(!heads.read(&b"x: y\r\n".repeat(60)));
        assert!(!heads.read(&b"x: y\r\n".repeat(42)));
        assert!(heads.read(b"\n"));
        assert!(heads.is_long());
        heads.request(false);
        assert!(!heads.is_long());
        assert!(!heads.read(&b"\n".repeat(102)));
        heads.request(true);
        assert!(!heads.read(&b"\n".repeat(1000)));
        heads.request(false);
        heads.stop();
        assert!(!heads.read(&b"\n".repeat(1000)));
        assert!(!heads.is_long());
    }
}
