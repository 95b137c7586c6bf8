//! Many lines in one piece of memory.

use std::ops::Range;

/// Lines in the order in which they came, each with a mark: to add one is to copy it.
pub struct LineBuffer<M = ()> {
    text: Vec<u8>,
    spans: Vec<(M, Range<usize>)>,
}

impl<M> Default for LineBuffer<M> {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            spans: Vec::new(),
        }
    }
}

impl<M: Copy> LineBuffer<M> {
    pub fn push(&mut self, line: &[u8], mark: M) {
        let start = self.text.len();
        self.text.extend_from_slice(line);
        self.spans.push((mark, start..self.text.len()));
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// How many bytes the lines have.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The lines and their marks, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (M, &[u8])> {
        let line = |span: &Range<usize>| self.text.get(span.clone()).unwrap_or_default();
        self.spans
            .iter()
            .map(move |(mark, span)| (*mark, line(span)))
    }

    /// Forgets the lines, and keeps their room for others.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Gives back what room there is over so many bytes of text, and over as much for their
    /// bounds.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.text.shrink_to(bytes);
        self.spans.shrink_to(bytes / size_of::<(M, Range<usize>)>());
    }

    /// How many bytes of memory it has.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.text.capacity() + self.spans.capacity() * size_of::<(M, Range<usize>)>()
    }
}
