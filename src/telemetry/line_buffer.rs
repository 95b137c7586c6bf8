//! Many lines in one allocation.

use std::ops::Range;

/// Lines in the order of their arrival, each with a mark. Adding one copies its text.
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

    /// The bytes of all lines.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The lines and their marks, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (M, &[u8])> {
        let line = |span: &Range<usize>| self.text.get(span.clone()).unwrap_or_default();
        self.spans
            .iter()
            .map(move |(mark, span)| (*mark, line(span)))
    }

    /// Drops the lines and keeps the allocation.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Frees what is allocated beyond `bytes` for text, and beyond `bytes` for spans.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.text.shrink_to(bytes);
        self.spans.shrink_to(bytes / size_of::<(M, Range<usize>)>());
    }

    /// The allocated bytes.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.text.capacity() + self.spans.capacity() * size_of::<(M, Range<usize>)>()
    }
}
