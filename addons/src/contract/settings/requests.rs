//! Methods and path patterns in settings.

use http::Method;
use regex::{Regex, RegexBuilder};

/// Limit on the memory of one compiled pattern, in bytes. A typical pattern takes a hundredth of
/// this limit. Any pattern is matched in time that is linear in the length of the path.
const PATTERN_BYTES: usize = 1 << 20;
/// The limit for a pattern that ignores letter case, in bytes. It is larger, since each letter
/// becomes a character class.
const FOLDED_PATTERN_BYTES: usize = 4 << 20;

/// The methods that requests may have and settings may name.
pub const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// Reads the name of a method.
pub fn parse_method(text: &str) -> Result<Method, String> {
    let found = METHODS.into_iter().find(|method| method.as_str() == text);
    found.ok_or_else(|| {
        let names = METHODS.map(|method| method.to_string());
        format!("must be one of {}", names.join(", "))
    })
}

/// A regular expression over paths in normal form.
#[derive(Clone, Debug)]
pub struct PathPattern(Regex);

impl PathPattern {
    /// Compiles a pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        let compiled = RegexBuilder::new(text).size_limit(PATTERN_BYTES).build();
        compiled.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                "is not accepted: the compiled pattern would be larger than 1 MB".to_owned()
            }
            error => {
                // The message has several lines and quotes the pattern. Only its last line is the
                // reason.
                let message = error.to_string();
                let reason = message.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                format!("is not a regular expression: {reason}")
            }
        })
    }

    /// Compiles a pattern that ignores letter case.
    pub fn parse_ignoring_case(text: &str) -> Result<Self, String> {
        Self::parse(text)?;
        RegexBuilder::new(text)
            .case_insensitive(true)
            .size_limit(FOLDED_PATTERN_BYTES)
            .build()
            .map(Self)
            .map_err(|_| {
                "is not accepted: compiled without regard to case, the pattern would be larger \
                 than 4 MB"
                    .to_owned()
            })
    }

    /// Whether the pattern matches a path.
    pub fn is_match(&self, path: &str) -> bool {
        self.0.is_match(path)
    }

    /// The pattern as written in the file.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for PathPattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_takes_too_much_memory_is_refused() {
        for parse in [PathPattern::parse, PathPattern::parse_ignoring_case] {
            assert!(parse("(a{1000}){1000}").is_err());
        }
    }
}
