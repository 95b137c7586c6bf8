//! A buffer of the newest lines.

use super::line_buffer::LineBuffer;

/// The lines of a full page, which are the fewest lines that are kept.
pub const KEPT: usize = 1000;

/// The newest 1000 lines, and at most 1000 older ones. A line has at most 5 KiB, apart from long
/// names of the operator, so the two pages hold at most 10 MiB of text. They allocate at most twice
/// as much, and seldom more than 1 MiB.
pub struct NewestLines<M = ()> {
    /// The full page; empty until there is one.
    older: LineBuffer<M>,
    /// The page that lines are added to. When it is full, it becomes the older one.
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
    /// Adds a line. If its page is full, the older page is dropped.
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

    /// The lines and their marks, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (M, &[u8])> {
        self.older.iter().chain(self.newer.iter())
    }

    /// Drops the lines, and frees what each page has allocated beyond `bytes`.
    pub fn clear(&mut self, bytes: usize) {
        for page in [&mut self.older, &mut self.newer] {
            page.clear();
            page.shrink_to(bytes);
        }
    }

    /// The allocated bytes.
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
    fn allocations_are_reused_and_freed_on_clear() {
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
