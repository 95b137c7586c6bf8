//! Walks over the text of valid JSON.

use std::borrow::Cow;

use super::RawJsonError;
use super::strict::after_string;

/// A position in a JSON text. At the end of the text, [`skip_value`](Self::skip_value) returns an
/// empty value and [`take`](Self::take) reports any closing bracket as consumed, so that every loop
/// ends even if the text is invalid.
pub(super) struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// Skips white space and returns the next byte, without consuming it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next()
    }

    /// Skips white space, and consumes `byte` if it comes next; returns whether it did. At the end
    /// of the text, returns `true` for a closing bracket.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        match self.peek() {
            Some(next) if next == byte => {
                self.advance(1);
                true
            }
            Some(_) => false,
            None => matches!(byte, b'}' | b']'),
        }
    }

    /// Consumes a key and its colon.
    pub(super) fn key(&mut self) -> Result<Cow<'a, str>, RawJsonError> {
        let key = decode(self.skip_value()).ok_or(RawJsonError::BadKey)?;
        self.take(b':');
        Ok(key)
    }

    /// Consumes a value and returns its text.
    pub(super) fn skip_value(&mut self) -> &'a str {
        let length = match self.peek() {
            Some(b'"') => string_length(self.rest),
            Some(b'{' | b'[') => nested_length(self.rest),
            _ => scalar_length(self.rest),
        };
        // At least one byte, so that loops over an invalid text end.
        self.advance(length.max(1))
    }

    fn advance(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }
}

/// The length of the string that the text begins with.
fn string_length(text: &str) -> usize {
    let inside = text.as_bytes().get(1..).unwrap_or_default();
    text.len().saturating_sub(after_string(inside).len())
}

/// The length of the object or array that the text begins with.
fn nested_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0_usize, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let length = text.get(at..).map_or(1, string_length);
                at = at.saturating_add(length);
                continue;
            }
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at.saturating_add(1);
                }
            }
            _ => {}
        }
        at = at.saturating_add(1);
    }
    text.len()
}

/// The length of the number or word that the text begins with.
fn scalar_length(text: &str) -> usize {
    let ends = |byte: u8| matches!(byte, b',' | b'}' | b']' | b':') || byte.is_ascii_whitespace();
    text.bytes().position(ends).unwrap_or(text.len())
}

/// The text of a JSON string; `None` for any other value or a string with an unpaired surrogate.
pub(super) fn decode(json: &str) -> Option<Cow<'_, str>> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}
