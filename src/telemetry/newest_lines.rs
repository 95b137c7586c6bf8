//! The newest of many lines.

use super::line_buffer::LineBuffer;

/// How many lines are kept.
pub const KEPT: usize = 1000;

/// A bounded memory of lines: the newest thousand, and at most as many that are older. A line has
/// at most 3 KiB but for the operator's own names: two pages of so many have 6 MiB, room for at
/// most twice as much, and seldom more than one.
pub struct NewestLines<M = ()> {
    /// Full, once there is one.
    older: LineBuffer<M>,
    /// The page that is written; when it is full, it becomes the older.
    newer: LineBuffer<M>,
}

impl<M> Default for NewestLines<M> {
    fn default() -> Self {
        Self {
            older: LineBuffer::default(),
            newer: LineBuffer::default(),
        }
    }
}

impl<M: Copy> NewestLines<M> {
    /// The oldest make room.
    pub fn push(&mut self, line: &[u8], mark: M) {
        if self.newer.len() == KEPT {
            std::mem::swap(&mut self.older, &mut self.newer);
            self.newer.clear();
        }
        self.newer.push(line, mark);
    }

    pub fn is_empty(&self) -> bool {
        self.newer.is_empty()
    }

    /// The lines and their marks, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (M, &[u8])> {
        self.older.iter().chain(self.newer.iter())
    }

    /// Forgets the lines, and gives back what room there is over so many bytes for each page.
    pub fn clear(&mut self, bytes: usize) {
        for page in [&mut self.older, &mut self.newer] {
            page.clear();
            page.shrink_to(bytes);
        }
    }

    /// How many bytes of memory it has.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.older.room() + self.newer.room()
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_newest_thousand_are_kept() {
        each_row([0, 1, 999, 1000, 1001, 1999, 2000, 2001, 3007], |count| {
            let mut lines = NewestLines::default();
            (0..count).for_each(|number| lines.push(b"line", number));
            let kept: Vec<_> = lines.iter().map(|(number, _)| number).collect();
            assert!(kept.len() >= count.min(KEPT) && kept.len() <= 2 * KEPT);
            assert_eq!(kept, (count - kept.len()..count).collect::<Vec<_>>());
        });
    }

    #[test]
    fn the_room_for_lines_is_used_again_and_given_back() {
        let mut lines = NewestLines::default();
        let line = b"0123456789".repeat(300);
        (0..50 * KEPT).for_each(|_| lines.push(&line, ()));
        assert_eq!(lines.iter().count(), 2 * KEPT);
        assert!(
            lines.room() <= 4 * KEPT * (line.len() + 16),
            "{}",
            lines.room()
        );
        lines.clear(4096);
        assert!(lines.room() <= 4 * 4096 && lines.is_empty());
    }
}
