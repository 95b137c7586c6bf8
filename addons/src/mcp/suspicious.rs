//! Detects texts of servers that look like instructions to a model. Such texts are flagged in the
//! audit and relayed, since attackers would easily evade a rule that denied them.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::Mcp;
use crate::contract::{Denial, Flow, Frame, FrameBody, Verdict};

/// The longest outcome that is searched on the connection's thread, in bytes. The search takes less
/// than 1 ms.
const SEARCHED_IN_PLACE: usize = 64 * 1024;

/// Escapes are replaced in pieces of at most this length, in bytes, so that long texts need little
/// memory.
const PIECE: usize = 64 * 1024;

/// Phrases that ordinary results of tools rarely contain, in lower case.
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

impl Mcp {
    /// Flags a result or an error whose text looks like an instruction. Searches long ones on a
    /// blocking thread.
    pub(super) async fn flag(&self, flow: &mut Flow, frame: &mut Frame, server: &str) -> Verdict {
        let suspicious = if length(&frame.body) <= SEARCHED_IN_PLACE {
            is_suspicious(&frame.body)
        } else {
            let body = std::mem::replace(&mut frame.body, FrameBody::Params(None));
            let work = move || (is_suspicious(&body), body);
            let searched = self.ports.tasks.run_blocking(work).await;
            let (suspicious, body) = searched.map_err(|_panicked| Denial::panicked())?;
            frame.body = body;
            suspicious
        };
        if suspicious {
            flow.mcp_record().suspicious = true;
            flow.note(|| format!("{server} sent text that looks like an instruction"));
        }
        Ok(())
    }
}

/// The total length of the texts in which [`is_suspicious`] searches, in bytes.
fn length(body: &FrameBody) -> usize {
    match body {
        FrameBody::Outcome(Ok(result)) => result.get().len(),
        FrameBody::Outcome(Err(error)) => {
            let data = error.data.as_ref().map_or(0, |data| data.get().len());
            error.message.len() + data
        }
        FrameBody::Params(_) => 0,
    }
}

/// Whether a result, an error's message or its data has one of the phrases, with or without JSON
/// escapes.
fn is_suspicious(body: &FrameBody) -> bool {
    match body {
        FrameBody::Outcome(Ok(result)) => looks_like_instruction(result.get()),
        FrameBody::Outcome(Err(error)) => {
            let data = error.data.as_ref();
            looks_like_instruction(&error.message)
                || data.is_some_and(|data| looks_like_instruction(data.get()))
        }
        FrameBody::Params(_) => false,
    }
}

/// Whether a text has one of the phrases, with or without JSON escapes.
#[must_use]
pub fn looks_like_instruction(json: &str) -> bool {
    let Some(patterns) = &*PATTERNS else {
        return false;
    };
    let mut rest = json.as_bytes();
    if memchr::memchr(b'\\', rest).is_none() {
        return patterns.is_match(rest);
    }
    let mut text = Vec::with_capacity(PIECE.min(rest.len()));
    loop {
        rest = unescape(rest, &mut text);
        if patterns.is_match(&text) {
            return true;
        }
        if rest.is_empty() {
            return false;
        }
        // A phrase may begin in this piece and end in the next.
        text.drain(..text.len().saturating_sub(patterns.max_pattern_len()));
    }
}

/// Appends JSON to a text until the text has [`PIECE`] bytes, and returns the rest. Replaces each
/// escape by one byte: the phrases are ASCII, so other characters do not matter.
fn unescape<'a>(json: &'a [u8], text: &mut Vec<u8>) -> &'a [u8] {
    let mut rest = json;
    loop {
        let most = rest.len().min(PIECE.saturating_sub(text.len()));
        let window = rest.get(..most).unwrap_or_default();
        let plain = memchr::memchr(b'\\', window).unwrap_or(most);
        let Some((plain, escape)) = rest.split_at_checked(plain) else {
            return rest;
        };
        text.extend_from_slice(plain);
        if plain.len() == most {
            return escape;
        }
        let (byte, length) = match escape {
            [_, b'u', ..] => (code_point(escape.get(2..6)), 6),
            [_, b'n' | b'r' | b't', ..] => (b' ', 2),
            [_, byte, ..] => (*byte, 2),
            _ => (b'\\', 1),
        };
        text.push(byte);
        rest = escape.get(length..).unwrap_or_default();
    }
}

/// The ASCII character of a `\u` escape's four hexadecimal digits; `?` for any other character.
fn code_point(digits: Option<&[u8]>) -> u8 {
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    code.filter(u8::is_ascii).unwrap_or(b'?')
}
