//! What one thread wrote to the flow log.

use std::time::Instant;

use addons::observe::Destination;

use super::line_buffer::LineBuffer;
use super::newest_lines::NewestLines;

/// The room that a buffer keeps, in bytes of text and as many for the rest: enough for what
/// gathers under load. What a burst or a slow disk took on top of it is given back.
pub const ROOM: usize = 256 * 1024;

/// What may wait for the disk.
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

/// One thread's part of the flow log.
#[derive(Default)]
pub struct ThreadBuffer {
    waiting: Waiting,
    /// The log takes nothing any more.
    closed: bool,
}

/// Lines that wait to be drained.
#[derive(Default)]
pub struct Waiting {
    /// What the log is to have.
    logged: LineBuffer<Mark>,
    /// What the log does not have, so that no flood of it takes the room of what the log is to
    /// have. Of more than the newest flows the older would be forgotten by whoever drains.
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

    /// Says whether the line gets where it is to go. Where the log has no room for it, those who
    /// watch have it all the same.
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

    /// From now on, the log takes nothing.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Changes what waits for an empty one.
    pub fn swap(&mut self, empty: &mut Waiting) {
        std::mem::swap(&mut self.waiting, empty);
    }

    /// How many bytes of memory it has.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.waiting.room()
    }
}

impl Waiting {
    /// The lines: those for the log in their order, and the others in theirs.
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

    /// Forgets the lines, and gives back what a burst took.
    pub fn clear(&mut self) {
        self.logged.clear();
        self.logged.shrink_to(ROOM);
        self.unlogged.clear(ROOM);
    }

    /// How many bytes of memory it has.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.logged.room() + self.unlogged.room()
    }
}
