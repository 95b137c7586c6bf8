//! The lines that one file contributes to a result of `grep`.

use std::fs::File;
use std::io::{self, Read};

use grep_searcher::{Searcher, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch};

use crate::failure::printable;
use crate::work::Work;

/// The most characters of a shown line. Longer lines are usually generated.
const LINE_CHARS_MAX: usize = 500;
/// The most bytes of a line that are decoded: enough for one character more than is shown, at four
/// bytes each.
const DECODED_BYTES_MAX: usize = 4 * (LINE_CHARS_MAX + 1);
/// The mark at the end of a line that was cut.
const CUT_MARK: &str = " [cut]";

/// The shown lines of one file.
#[derive(Debug)]
pub(super) struct FileLines {
    path: String,
    text: String,
    /// For each match, the offset in `text` at which its lines begin: the context before the match
    /// or, without context, the line of the match.
    starts: Vec<usize>,
    /// The offset in `text` of the context before the next match.
    context_start: Option<usize>,
    matches_max: usize,
    bytes_max: usize,
    cut: bool,
    pub(super) binary_at: Option<u64>,
}

impl FileLines {
    /// Collects lines of the file that is shown as `path`, up to about `bytes_max` bytes and to
    /// `matches_max` matches.
    pub(super) fn new(path: String, matches_max: usize, bytes_max: usize) -> Self {
        Self {
            path: printable(&path),
            text: String::new(),
            starts: Vec::new(),
            context_start: None,
            matches_max,
            bytes_max,
            cut: false,
            binary_at: None,
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn matches(&self) -> usize {
        self.starts.len()
    }

    /// The number of bytes of all lines.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether a line was cut.
    pub(super) fn has_cut_lines(&self) -> bool {
        self.cut
    }

    /// The lines of the first `matches` matches.
    pub(super) fn text(&self, matches: usize) -> &str {
        let end = self.starts.get(matches).copied();
        self.text
            .get(..end.unwrap_or(self.text.len()))
            .unwrap_or_default()
    }

    fn push(&mut self, line_number: Option<u64>, mark: char, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.text.push_str(&self.path);
        self.text.push(mark);
        self.text.push_str(&line_number.unwrap_or(0).to_string());
        self.text.push(mark);
        self.text.push(' ');
        let beginning = line.get(..DECODED_BYTES_MAX).unwrap_or(line);
        let shown = String::from_utf8_lossy(beginning);
        match shown.char_indices().nth(LINE_CHARS_MAX) {
            Some((end, _)) => {
                self.text.push_str(shown.get(..end).unwrap_or_default());
                self.text.push_str(CUT_MARK);
                self.cut = true;
            }
            None => self.text.push_str(&shown),
        }
        self.text.push('\n');
    }

    fn has_room(&self) -> bool {
        self.matches() < self.matches_max && self.text.len() < self.bytes_max
    }
}

impl Sink for FileLines {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let start = self.context_start.take().unwrap_or(self.text.len());
        self.starts.push(start);
        self.push(found.line_number(), ':', found.bytes());
        Ok(self.has_room())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        if matches!(context.kind(), SinkContextKind::Before) {
            self.context_start.get_or_insert(self.text.len());
        }
        self.push(context.line_number(), '-', context.bytes());
        Ok(self.text.len() < self.bytes_max)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), io::Error> {
        self.binary_at = finish.binary_byte_offset();
        Ok(())
    }
}

/// A reader that fails once the operation was cancelled or its deadline has passed.
pub(super) struct CheckedReader<'a> {
    pub(super) file: File,
    pub(super) work: &'a Work,
}

impl Read for CheckedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.work.check().map_err(io::Error::other)?;
        self.file.read(buffer)
    }
}
