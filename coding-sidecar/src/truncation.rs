//! The bounds of an answer's text: 2,000 lines and 51,200 bytes.

use serde::Serialize;

/// Most lines of text in one answer. More than a model reads usefully at once.
pub const OUTPUT_LINES_MAX: usize = 2_000;
/// Most bytes of text in one answer: 50 KiB, about 12,000 tokens.
pub const OUTPUT_BYTES_MAX: usize = 51_200;

/// Which bound cut a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TruncatedBy {
    /// More lines than allowed.
    Lines,
    /// More bytes than allowed.
    Bytes,
}

/// A text within the bounds, and what it was cut from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Truncation {
    /// The text that is left.
    pub content: String,
    /// Whether anything was cut.
    pub truncated: bool,
    /// The bound that was reached first.
    pub truncated_by: Option<TruncatedBy>,
    /// Lines before the cut.
    pub total_lines: u64,
    /// Bytes before the cut.
    pub total_bytes: u64,
    /// Lines of `content`, a partial one included.
    pub output_lines: u64,
    /// Bytes of `content`.
    pub output_bytes: u64,
    /// Whether the last line of `content` is not whole.
    pub last_line_partial: bool,
    /// Whether the first line alone is longer than the bound in bytes; `content` is its beginning.
    pub first_line_exceeds_limit: bool,
    /// The bound in lines.
    pub max_lines: u64,
    /// The bound in bytes.
    pub max_bytes: u64,
}
