//! Detects texts of servers that look like instructions to a model. Such texts are flagged in the
//! audit and relayed, since attackers would easily evade a rule that denied them.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

/// Number of bytes that are searched at the beginning of a result, of an error's message and of an
/// error's data.
const SEARCHED: usize = 64 * 1024;

/// Phrases that ordinary results of tools do not contain, in lower case.
const PHRASES: [&str; 16] = [
    "ignore previous instructions",
    "ignore all previous",
    "ignore the previous",
    "ignore your instructions",
    "disregard previous",
    "disregard all previous",
    "disregard the above",
    "forget your instructions",
    "new instructions:",
    "system prompt",
    "do not tell the user",
    "don't tell the user",
    "do not mention this",
    "without telling the user",
    "<important>",
    "you are now",
];

static PATTERNS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let mut builder = AhoCorasick::builder();
    builder.ascii_case_insensitive(true).build(PHRASES).ok()
});

/// Whether a JSON text, or an error's message, contains one of the phrases in its first 64 KiB,
/// with or without escapes.
pub(super) fn is_suspicious(json: &str) -> bool {
    let end = json.len().min(SEARCHED);
    let searched = json.as_bytes().get(..end).unwrap_or_default();
    PATTERNS
        .as_ref()
        .is_some_and(|patterns| patterns.is_match(&*unescaped(searched)))
}

/// Replaces each escape by one byte. The phrases are ASCII, so other characters do not matter.
fn unescaped(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', json).is_none() {
        return Cow::Borrowed(json);
    }
    let mut text = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some((plain, escape)) =
        memchr::memchr(b'\\', rest).and_then(|at| rest.split_at_checked(at))
    {
        text.extend_from_slice(plain);
        let (byte, length) = match escape {
            [_, b'u', ..] => (code_point(escape.get(2..6)), 6),
            [_, b'n' | b'r' | b't', ..] => (b' ', 2),
            [_, byte, ..] => (*byte, 2),
            _ => (b'\\', 1),
        };
        text.push(byte);
        rest = escape.get(length..).unwrap_or_default();
    }
    text.extend_from_slice(rest);
    Cow::Owned(text)
}

/// The ASCII character of a `\u` escape's four hexadecimal digits; `?` for any other character.
fn code_point(digits: Option<&[u8]>) -> u8 {
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    code.filter(u8::is_ascii).unwrap_or(b'?')
}
