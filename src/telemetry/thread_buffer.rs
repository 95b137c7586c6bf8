//! The lines that one thread wrote to the flow log.

use std::time::Instant;

use addons::observe::Destination;

use super::line_buffer::LineBuffer;
use super::newest_lines::NewestLines;

/// The allocation that a drained buffer keeps, in bytes for text and as many for the spans: enough
/// for sustained load. The rest, which a burst or a slow disk needed, is freed.
pub const ROOM: usize = 256 * 1024;

/// The most lines, and the most bytes of text, that may wait for the disk.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub lines: usize,
    pub bytes: usize,
}

impl Bounds {
    /// Whether there is room for one more line.
    pub fn admit<M: Copy>(self, waiting: &LineBuffer<M>, line: &[u8]) -> bool {
        waiting.len() < self.lines && waiting.bytes() + line.len() <= self.bytes
    }
}

/// The buffer of one thread in the flow log.
#[derive(Default)]
pub struct ThreadBuffer {
    waiting: Waiting,
    /// The log takes no more lines.
    closed: bool,
}

/// Lines that wait to be drained.
#[derive(Default)]
pub struct Waiting {
    /// Lines for the log.
    logged: LineBuffer<Mark>,
    /// Lines that only live readers get, kept separately, so that a flood of them takes no room
    /// from lines for the log. Older ones than the newest 1000 may be dropped.
    unlogged: NewestLines<Instant>,
}

#[derive(Clone, Copy)]
struct Mark {
    ended: Instant,
    to: Destination,
}

/// A line that was drained.
pub struct Line<'a> {
    pub ended: Instant,
    pub to: Destination,
    pub text: &'a [u8],
}

impl ThreadBuffer {
    pub fn is_empty(&self) -> bool {
        self.waiting.logged.is_empty() && self.waiting.unlogged.is_empty()
    }

    /// Adds a line. Returns `false` if it was for the log and the log has no room for it or is
    /// closed; then live readers still get it.
    pub fn push(&mut self, line: &[u8], ended: Instant, to: Destination, bounds: Bounds) -> bool {
        let Waiting { logged, unlogged } = &mut self.waiting;
        let is_for_log = to != Destination::Live;
        let is_logged = is_for_log && !self.closed && bounds.admit(logged, line);
        if is_logged {
            logged.push(line, Mark { ended, to });
        } else if to != Destination::Log {
            unlogged.push(line, ended);
        }
        is_logged == is_for_log
    }

    /// Drops further lines for the log.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Swaps the waiting lines for empty buffers.
    pub fn swap(&mut self, empty: &mut Waiting) {
        std::mem::swap(&mut self.waiting, empty);
    }

    /// The allocated bytes.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.waiting.room()
    }
}

impl Waiting {
    /// The lines: those for the log, oldest first, then the others, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let logged = self.logged.iter().map(|(mark, text)| Line {
            ended: mark.ended,
            to: mark.to,
            text,
        });
        let unlogged = self.unlogged.iter().map(|(ended, text)| Line {
            ended,
            to: Destination::Live,
            text,
        });
        logged.chain(unlogged)
    }

    /// Drops the lines, and frees what is allocated beyond [`ROOM`].
    pub fn clear(&mut self) {
        self.logged.clear();
        self.logged.shrink_to(ROOM);
        self.unlogged.clear(ROOM);
    }

    /// The allocated bytes.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.logged.room() + self.unlogged.room()
    }
}
