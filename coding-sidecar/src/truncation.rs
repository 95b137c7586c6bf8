//! Truncates the text of a result to 2,000 lines and 51,200 bytes.

use serde::Serialize;

/// The most lines of text in one result: more than a language model makes use of at once.
pub const OUTPUT_LINES_MAX: usize = 2_000;
/// The most bytes of text in one result: 50 KiB, about 12,000 tokens.
pub const OUTPUT_BYTES_MAX: usize = 51_200;

/// The bound at which a text was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TruncatedBy {
    /// The bound in lines.
    Lines,
    /// The bound in bytes.
    Bytes,
}

/// A text within the bounds, and the sizes of the text from which it was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Truncation {
    /// The text within the bounds.
    pub content: String,
    /// Whether the text was cut.
    pub truncated: bool,
    /// The bound that was exceeded first; `None` if the text was not cut.
    pub truncated_by: Option<TruncatedBy>,
    /// The number of lines of the uncut text. For `read`, these are the requested lines. `find` and
    /// `grep` may end early; for them, these are the lines that were found until then.
    pub total_lines: u64,
    /// The number of bytes of the lines in `total_lines`.
    pub total_bytes: u64,
    /// The number of lines of `content`, including a partial one.
    pub output_lines: u64,
    /// The number of bytes of `content`.
    pub output_bytes: u64,
    /// Whether the last line of `content` is incomplete.
    pub last_line_partial: bool,
    /// Whether the first line exceeds the bound in bytes; then `content` is its beginning.
    pub first_line_exceeds_limit: bool,
    /// The bound in lines that applied.
    pub max_lines: u64,
    /// The bound in bytes that applied.
    pub max_bytes: u64,
}

/// Keeps the beginning of a text within the bounds and counts the rest. Cuts between lines, unless
/// the first line exceeds the bound in bytes.
#[derive(Debug)]
pub(crate) struct HeadCut {
    kept: Vec<u8>,
    kept_lines: usize,
    /// The offset in `kept` at which the last, still open line begins.
    line_start: usize,
    lines_max: usize,
    cut_by: Option<TruncatedBy>,
    first_line_exceeds: bool,
    newlines: u64,
    total_bytes: u64,
    /// Whether the text so far ends without a newline.
    ends_open: bool,
}

impl HeadCut {
    /// Creates a cut at the bounds of every result, or at `lines_max` lines if that is less.
    pub(crate) fn new(lines_max: usize) -> Self {
        Self {
            kept: Vec::new(),
            kept_lines: 0,
            line_start: 0,
            lines_max: lines_max.min(OUTPUT_LINES_MAX),
            cut_by: None,
            first_line_exceeds: false,
            newlines: 0,
            total_bytes: 0,
            ends_open: false,
        }
    }

    /// Appends a piece of the text.
    pub(crate) fn take(&mut self, text: &[u8]) {
        let Some(last) = text.last() else { return };
        self.ends_open = *last != b'\n';
        self.total_bytes = self.total_bytes.saturating_add(text.len() as u64);
        let newlines = memchr::memchr_iter(b'\n', text).count();
        self.newlines = self.newlines.saturating_add(newlines as u64);
        if self.cut_by.is_none() {
            self.keep(text);
        }
    }

    /// Appends a whole line. Returns false if a bound has cut the text.
    pub(crate) fn take_line(&mut self, line: &str) -> bool {
        self.take(line.as_bytes());
        self.take(b"\n");
        self.cut_by.is_none()
    }

    /// Counts further lines that the caller left out: `lines` lines, `bytes` bytes in total.
    pub(crate) fn leave_out_lines(&mut self, lines: u64, bytes: u64) {
        if lines > 0 {
            self.newlines = self.newlines.saturating_add(lines);
            self.total_bytes = self.total_bytes.saturating_add(bytes);
            self.cut_by.get_or_insert(TruncatedBy::Lines);
        }
    }

    /// Whether the text was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut_by.is_some()
    }

    fn keep(&mut self, text: &[u8]) {
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            if self.kept_lines >= self.lines_max {
                self.cut_by = Some(TruncatedBy::Lines);
                return;
            }
            let room = OUTPUT_BYTES_MAX.saturating_sub(self.kept.len());
            if let Some((fits, _)) = piece.split_at_checked(room)
                && fits.len() < piece.len()
            {
                self.cut_by = Some(TruncatedBy::Bytes);
                if self.line_start == 0 {
                    self.first_line_exceeds = true;
                    self.kept.extend_from_slice(fits);
                } else {
                    self.kept.truncate(self.line_start);
                }
                return;
            }
            self.kept.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.kept_lines = self.kept_lines.saturating_add(1);
                self.line_start = self.kept.len();
            }
        }
    }

    /// Returns the text within the bounds, with U+FFFD in place of invalid UTF-8, and the counts.
    pub(crate) fn finish(self) -> Truncation {
        let total_lines = self.newlines.saturating_add(u64::from(self.ends_open));
        let mut kept = self.kept;
        if self.cut_by.is_some()
            && let Err(error) = std::str::from_utf8(&kept)
            && error.error_len().is_none()
        {
            // The bound cut a character in two.
            kept.truncate(error.valid_up_to());
        }
        let content = match String::from_utf8(kept) {
            Ok(content) => content,
            Err(error) => {
                let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
                if shown.len() > OUTPUT_BYTES_MAX {
                    return recut(&shown, self.lines_max, total_lines, self.total_bytes);
                }
                shown
            }
        };
        let partial = !content.is_empty() && !content.ends_with('\n');
        Truncation {
            truncated: self.cut_by.is_some(),
            truncated_by: self.cut_by,
            total_lines,
            total_bytes: self.total_bytes,
            output_lines: (self.kept_lines as u64).saturating_add(u64::from(partial)),
            output_bytes: content.len() as u64,
            last_line_partial: self.first_line_exceeds,
            first_line_exceeds_limit: self.first_line_exceeds,
            max_lines: self.lines_max as u64,
            max_bytes: OUTPUT_BYTES_MAX as u64,
            content,
        }
    }
}

impl Truncation {
    /// Returns the truncation if the text was cut, otherwise `None`.
    pub(crate) fn if_cut(self) -> Option<Self> {
        self.truncated.then_some(self)
    }
}

/// Cuts a text again: U+FFFD is longer than the invalid bytes that it replaced, so the text exceeds
/// the bound.
fn recut(shown: &str, lines_max: usize, total_lines: u64, total_bytes: u64) -> Truncation {
    let mut cut = HeadCut::new(lines_max);
    cut.take(shown.as_bytes());
    Truncation {
        total_lines,
        total_bytes,
        ..cut.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::each_row;

    fn cut(pieces: &[&[u8]]) -> Truncation {
        let mut cut = HeadCut::new(OUTPUT_LINES_MAX);
        for piece in pieces {
            cut.take(piece);
        }
        cut.finish()
    }

    #[test]
    fn a_text_within_the_bounds_is_unchanged() {
        let full = "x\n".repeat(OUTPUT_LINES_MAX);
        let wide = format!("{}\n", "x".repeat(OUTPUT_BYTES_MAX - 1));
        each_row(
            [
                ("", 0),
                ("a", 1),
                ("a\n", 1),
                ("a\n\nb", 3),
                ("\r\n", 1),
                (full.as_str(), OUTPUT_LINES_MAX as u64),
                (wide.as_str(), 1),
            ],
            |(text, lines)| {
                let cut = cut(&[text.as_bytes()]);
                assert_eq!(cut.content, text);
                assert!(!cut.truncated && cut.truncated_by.is_none());
                assert_eq!((cut.total_lines, cut.output_lines), (lines, lines));
                assert_eq!(cut.total_bytes, cut.output_bytes);
            },
        );
    }

    #[test]
    fn a_text_whose_first_line_fits_is_cut_after_a_whole_line() {
        let lines = "x\n".repeat(OUTPUT_LINES_MAX + 3);
        let bytes = format!("{}\n", "é".repeat(1000)).repeat(30);
        each_row(
            [
                (lines, TruncatedBy::Lines, 2000, 4000),
                (bytes, TruncatedBy::Bytes, 25, 25 * 2001),
            ],
            |(text, by, output_lines, output_bytes)| {
                let cut = cut(&[text.as_bytes()]);
                assert_eq!(cut.truncated_by, Some(by));
                assert!(text.starts_with(&cut.content) && cut.content.ends_with('\n'));
                assert_eq!(cut.output_lines, output_lines);
                assert_eq!(cut.output_bytes, output_bytes);
                assert_eq!(cut.content.len() as u64, output_bytes);
                assert_eq!(cut.total_lines, text.lines().count() as u64);
                assert_eq!(cut.total_bytes, text.len() as u64);
                assert!(!cut.last_line_partial && !cut.first_line_exceeds_limit);
            },
        );
    }

    #[test]
    fn a_first_line_that_is_too_long_is_cut_between_characters() {
        let text = format!("x{}\nend", "é".repeat(OUTPUT_BYTES_MAX));
        let cut = cut(&[text.as_bytes()]);
        assert!(cut.first_line_exceeds_limit && cut.last_line_partial);
        assert_eq!(cut.truncated_by, Some(TruncatedBy::Bytes));
        assert_eq!(cut.output_lines, 1);
        assert_eq!(cut.content.len(), OUTPUT_BYTES_MAX - 1);
        assert!(text.starts_with(&cut.content));
    }

    #[test]
    fn the_cut_does_not_depend_on_the_pieces() {
        let text = format!("{}\nb\n", "a\n".repeat(30_000)) + &"long".repeat(20_000);
        let whole = cut(&[text.as_bytes()]);
        for size in [1, 2, 7, 4096] {
            let pieces: Vec<_> = text.as_bytes().chunks(size).collect();
            assert_eq!(cut(&pieces), whole, "pieces of {size} bytes");
        }
        let long_first = "é".repeat(OUTPUT_BYTES_MAX);
        let whole = cut(&[long_first.as_bytes()]);
        let pieces: Vec<_> = long_first.as_bytes().chunks(3).collect();
        assert_eq!(cut(&pieces), whole);
    }

    #[test]
    fn bytes_that_are_not_utf8_stay_within_the_bound_when_shown() {
        let line = [&[0xff; 99][..], b"\n"].concat();
        let cut = cut(&[&line.repeat(512)]);
        assert!(cut.content.len() <= OUTPUT_BYTES_MAX);
        assert_eq!(cut.output_bytes, cut.content.len() as u64);
        assert_eq!((cut.total_lines, cut.total_bytes), (512, 51_200));
        assert_eq!(cut.output_lines, cut.content.lines().count() as u64);
        assert!(cut.truncated && cut.content.ends_with("\u{fffd}\n"));
    }

    #[test]
    fn the_json_fields_have_the_names_that_the_proxy_reads() {
        let shown = serde_json::to_value(cut(&[&b"x\n".repeat(3000)])).unwrap();
        let names: Vec<_> = shown.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            names,
            [
                "content",
                "truncated",
                "truncatedBy",
                "totalLines",
                "totalBytes",
                "outputLines",
                "outputBytes",
                "lastLinePartial",
                "firstLineExceedsLimit",
                "maxLines",
                "maxBytes"
            ]
        );
        assert_eq!(shown["truncatedBy"], "lines");
    }
}
