//! Keeps the last part of a command's output.

use serde::{Deserialize, Serialize};

/// The most lines that are kept.
const MAX_LINES: u64 = 2000;
/// The most bytes that are kept.
const MAX_BYTES: usize = 51_200;
/// Length of the held text, in bytes, above which its beginning is dropped. Four times
/// [`MAX_BYTES`], so that the remaining text is moved at most once for every three times
/// [`MAX_BYTES`] of output.
const HELD: usize = 4 * MAX_BYTES;

/// How a text was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Truncation {
    pub truncated: bool,
    /// `lines` or `bytes`: the bound that was reached.
    pub truncated_by: Option<String>,
    pub total_lines: u64,
    pub total_bytes: u64,
    pub output_lines: u64,
    pub output_bytes: u64,
    /// The only remaining line is part of a longer one.
    pub last_line_partial: bool,
    /// The first line alone exceeds the limit in bytes; only its beginning remains.
    pub first_line_exceeds_limit: bool,
    pub max_lines: u64,
    pub max_bytes: u64,
}

/// Collects a text and keeps its last part. Holds at most [`HELD`] bytes and one piece.
#[derive(Default)]
pub struct Tail {
    held: String,
    bytes: u64,
    line_ends: u64,
}

impl Tail {
    /// Adds a piece.
    pub fn push(&mut self, piece: &str) {
        let line_ends = piece.bytes().filter(|byte| *byte == b'\n').count();
        self.line_ends = self.line_ends.saturating_add(line_ends as u64);
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        self.held.push_str(piece);
        if self.held.len() > HELD {
            // One byte more than `finish` keeps, so that `finish` never takes the first held line,
            // whose beginning may be dropped, for a whole line.
            let from = self.held.len().saturating_sub(MAX_BYTES + 1);
            let from = self.held.floor_char_boundary(from);
            self.held.drain(..from);
        }
    }

    /// The last part of the text, and how it was cut.
    pub fn finish(mut self) -> (String, Truncation) {
        let begun = u64::from(!self.held.is_empty() && !self.held.ends_with('\n'));
        let total_lines = self.line_ends.saturating_add(begun);
        let mut cut = Truncation {
            total_lines,
            total_bytes: self.bytes,
            max_lines: MAX_LINES,
            max_bytes: MAX_BYTES as u64,
            ..Truncation::default()
        };
        let kept = self.last_lines(&mut cut);
        cut.output_bytes = kept as u64;
        let from = self.held.len().saturating_sub(kept);
        self.held.drain(..from);
        (self.held, cut)
    }

    /// Number of bytes to keep: the last whole lines within the limits, or the end of the last line
    /// if this line alone exceeds the limit in bytes.
    fn last_lines(&self, cut: &mut Truncation) -> usize {
        let mut kept = 0_usize;
        for line in self.held.split_inclusive('\n').rev() {
            let with_line = kept.saturating_add(line.len());
            let bound = match (cut.output_lines >= MAX_LINES, with_line > MAX_BYTES) {
                (true, _) => "lines",
                (_, true) => "bytes",
                _ => {
                    kept = with_line;
                    cut.output_lines = cut.output_lines.saturating_add(1);
                    continue;
                }
            };
            cut.truncated = true;
            cut.truncated_by = Some(bound.to_owned());
            if kept == 0 {
                cut.last_line_partial = true;
                cut.output_lines = 1;
                let from = self.held.len().saturating_sub(MAX_BYTES);
                let from = self.held.ceil_char_boundary(from);
                return self.held.len().saturating_sub(from);
            }
            return kept;
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail(pieces: &[&str]) -> (String, Truncation) {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.finish()
    }

    #[test]
    fn a_short_output_is_whole() {
        let (text, cut) = tail(&["a\n", "b"]);
        assert_eq!(text, "a\nb");
        let expected = Truncation {
            total_lines: 2,
            total_bytes: 3,
            output_lines: 2,
            output_bytes: 3,
            max_lines: 2000,
            max_bytes: 51_200,
            ..Truncation::default()
        };
        assert_eq!(cut, expected);
        assert_eq!(tail(&[]).1.total_lines, 0);
        assert_eq!(tail(&["a\n"]).1.total_lines, 1);
    }

    #[test]
    fn the_last_lines_of_many_are_kept() {
        let lines: Vec<String> = (1..=3000).map(|number| format!("{number}\n")).collect();
        let (text, cut) = tail(&[&lines.concat()]);
        assert_eq!(text, lines[1000..].concat());
        assert_eq!((cut.total_lines, cut.output_lines), (3000, 2000));
        assert_eq!(cut.truncated_by.as_deref(), Some("lines"));
    }

    #[test]
    fn the_last_whole_lines_that_fit_are_kept() {
        let line = format!("{}\n", "x".repeat(999));
        let (text, cut) = tail(&[&line.repeat(60)]);
        assert_eq!(text, line.repeat(51));
        assert_eq!(cut.truncated_by.as_deref(), Some("bytes"));
        assert!(!cut.last_line_partial);
    }

    #[test]
    fn the_end_of_a_line_that_is_too_long_is_kept() {
        let (text, cut) = tail(&["ä\n", &"ä".repeat(40_000), "x"]);
        assert_eq!(text.len(), 51_199);
        assert!(text.ends_with("äx"));
        assert!(cut.last_line_partial);
        assert_eq!((cut.total_lines, cut.output_lines), (2, 1));
    }

    fn piece() -> impl Strategy<Value = String> {
        let short = (0_usize..200).prop_map(|length| "é".repeat(length));
        let long = (0_usize..60_000).prop_map(|length| "é".repeat(length));
        let lines = (0_usize..2000).prop_map(|count| "x\n".repeat(count));
        prop_oneof![3 => short, 1 => long, 1 => lines, 2 => Just("\n".to_owned())]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_kept_text_is_the_end_of_all_pieces_and_memory_is_bounded(
            all in prop::collection::vec(piece(), 0..40),
        ) {
            let mut whole = String::new();
            let mut pieces = Tail::default();
            for piece in all {
                pieces.push(&piece);
                whole.push_str(&piece);
                prop_assert!(pieces.held.len() <= HELD + piece.len());
            }
            let (text, cut) = pieces.finish();
            prop_assert!(whole.ends_with(&text));
            prop_assert!(text.len() <= MAX_BYTES);
            prop_assert_eq!(cut.total_bytes, whole.len() as u64);
            prop_assert_eq!(cut.total_lines, whole.lines().count() as u64);
            prop_assert_eq!(cut.truncated, text.len() < whole.len());
            prop_assert_eq!(cut.output_lines, text.lines().count() as u64);
            let begins_a_line = whole.len() == text.len() || whole[..whole.len() - text.len()].ends_with('\n');
            prop_assert!(cut.last_line_partial || begins_a_line);
        }
    }
}
