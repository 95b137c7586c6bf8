//! Compiled patterns.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};

use super::{Stop, go, unsupported};

/// Limit on the size of a compiled pattern, in bytes. A search takes time in proportion to it.
const MAX_COMPILED: usize = 100 << 10;
/// Limit on the cache that a search uses, in bytes.
const MAX_CACHE: usize = 256 << 10;
/// Limit on the length of a pattern, in bytes. Before it is compiled, a pattern takes about a
/// hundred times as much memory.
const MAX_PATTERN: usize = 16 << 10;
/// Limit on the patterns that are kept.
const MAX_KEPT: usize = 100;

/// A compiled pattern.
#[derive(Clone)]
pub struct Pattern {
    pub regex: Regex,
    /// The names of the groups in order, the whole match not included; empty without a name.
    pub names: Arc<[String]>,
}

/// The compiled patterns by their texts. The first byte of a text tells the kind of the pattern.
static KEPT: LazyLock<Mutex<HashMap<String, Pattern>>> = LazyLock::new(Mutex::default);

/// The pattern for `key`. If it is not kept, `translate` returns its text for the crate `regex` and
/// the names of its groups.
pub fn compiled(
    key: String,
    translate: impl FnOnce() -> Result<(String, Vec<String>), Stop>,
) -> Result<Pattern, Stop> {
    if key.len() > MAX_PATTERN {
        return unsupported(format!("a pattern is longer than {MAX_PATTERN} bytes"));
    }
    if let Some(pattern) = KEPT.lock().get(&key) {
        return Ok(pattern.clone());
    }
    let (text, names) = translate()?;
    let regex = RegexBuilder::new(&text)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_CACHE)
        .build();
    let pattern = match regex {
        Ok(regex) => Pattern {
            regex,
            names: names.into(),
        },
        Err(error) => return unsupported(format!("a pattern cannot be compiled: {error}")),
    };
    let mut kept = KEPT.lock();
    if kept.len() >= MAX_KEPT {
        kept.clear();
    }
    kept.insert(key, pattern.clone());
    Ok(pattern)
}

/// The compiled form of a regular expression of Go. Undefined if Go refuses it.
pub fn go_regex(pattern: &str) -> Result<Pattern, Stop> {
    compiled(format!("r{pattern}"), || go::translate(pattern))
}
