//! Selects the requested lines of a file that is read in pieces.

use memchr::memchr_iter;

use crate::failure::Failure;

/// Selects the lines `first..first + limit` of a text that is read in pieces.
#[derive(Debug)]
pub(super) struct LineRange {
    first: u64,
    limit: Option<u64>,
    /// The number of newlines so far.
    newlines: u64,
    /// Whether the text so far ends without a newline.
    ends_open: bool,
}

impl LineRange {
    /// Selects at most `limit` lines from line `offset` on, counted from 1. By default, selects all
    /// lines.
    pub(super) fn new(offset: Option<u64>, limit: Option<u64>) -> Result<Self, Failure> {
        if offset == Some(0) {
            return Err(Failure::Request("offset counts lines from 1".into()));
        }
        if limit == Some(0) {
            return Err(Failure::Request("limit must be at least 1".into()));
        }
        Ok(Self {
            first: offset.unwrap_or(1),
            limit,
            newlines: 0,
            ends_open: false,
        })
    }

    /// The number of the first line, from 1.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The part of the next `piece` that belongs to the selected lines.
    pub(super) fn select<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let Some(last) = piece.last() else {
            return piece;
        };
        self.ends_open = *last != b'\n';
        let before = self.newlines;
        let newlines = memchr_iter(b'\n', piece).count() as u64;
        self.newlines = before.saturating_add(newlines);
        let skip = self.first.saturating_sub(1);
        let start = line_start(piece, newlines, skip.saturating_sub(before));
        let end = match self.limit {
            None => piece.len(),
            Some(limit) => {
                let end = skip.saturating_add(limit).saturating_sub(before);
                line_start(piece, newlines, end)
            }
        };
        piece.get(start..end).unwrap_or_default()
    }

    /// The number of lines of the text so far; the last one may lack its newline.
    pub(super) fn total_lines(&self) -> u64 {
        self.newlines.saturating_add(u64::from(self.ends_open))
    }

    /// Whether the selection begins after the last of `total` lines. Line 1 of an empty text counts
    /// as existing.
    pub(super) fn begins_after(&self, total: u64) -> bool {
        self.first > total.max(1)
    }
}

/// The offset in `piece` after its `line`-th newline. `newlines` is the number of newlines in
/// `piece`. Returns 0 for `line` 0, and the length of `piece` if `line` exceeds `newlines`.
fn line_start(piece: &[u8], newlines: u64, line: u64) -> usize {
    if line > newlines {
        return piece.len();
    }
    let Some(before) = line.checked_sub(1) else {
        return 0;
    };
    usize::try_from(before)
        .ok()
        .and_then(|before| memchr_iter(b'\n', piece).nth(before))
        .map_or(piece.len(), |newline| newline.saturating_add(1))
}
