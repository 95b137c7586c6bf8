//! Texts of servers that look like instructions to a model. They are flagged in the audit and
//! passed on: a rule that denied them would be guessed around.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

/// What is searched of one result, in bytes from its beginning.
const SEARCHED: usize = 64 * 1024;

/// Phrases that tools have no reason to say.
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

/// Whether a JSON text holds one of the phrases in its first 64 KiB.
pub(super) fn is_suspicious(json: &str) -> bool {
    let end = json.len().min(SEARCHED);
    let searched = json.as_bytes().get(..end).unwrap_or_default();
    PATTERNS
        .as_ref()
        .is_some_and(|patterns| patterns.is_match(searched))
}
