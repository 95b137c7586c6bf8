//! Many lines in one piece of memory.

use std::ops::Range;

/// Lines in the order in which they came: to add one is to copy it.
#[derive(Clone, Default)]
pub struct LineBuffer {
    text: Vec<u8>,
    spans: Vec<Range<usize>>,
}

impl LineBuffer {
    pub fn push(&mut self, line: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(line);
        self.spans.push(start..self.text.len());
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The lines, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let line = |span: &Range<usize>| self.text.get(span.clone()).unwrap_or_default();
        self.spans.iter().map(line)
    }

    /// Forgets the lines, and keeps their room for others.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Gives back what room there is over so many bytes of text.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.text.shrink_to(bytes);
    }

    /// For how many bytes of text there is room.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.text.capacity()
    }
}
