//! Patterns over paths, by method, as the configuration gives them.

use std::collections::BTreeMap;

use http::Method;
use regex::{Regex, RegexBuilder};

/// The memory that one compiled pattern may take, letter case folded.
const SIZE_LIMIT: usize = 4 << 20;

/// Patterns that are matched without regard to case, as GitHub matches paths.
#[derive(Default)]
pub struct Patterns(Vec<(Method, Vec<Regex>)>);

impl Patterns {
    /// Compiles them; an error names the pattern.
    pub fn new(patterns: &BTreeMap<String, Vec<String>>) -> Result<Self, String> {
        let mut compiled = Vec::new();
        for (method, patterns) in patterns {
            let parsed = Method::from_bytes(method.as_bytes());
            let parsed = parsed.map_err(|_| format!("{method}: is no method"))?;
            let patterns = patterns.iter().map(|pattern| compile(pattern));
            compiled.push((parsed, patterns.collect::<Result<_, _>>()?));
        }
        Ok(Self(compiled))
    }

    /// The first pattern of a method that matches.
    pub(super) fn find(&self, method: &Method, path: &str) -> Option<&str> {
        let of_method = self.0.iter().filter(|(listed, _)| listed == method);
        let mut patterns = of_method.flat_map(|(_, patterns)| patterns);
        let found = patterns.find(|pattern| pattern.is_match(path))?;
        Some(found.as_str())
    }

    /// The pattern that guards a request. HEAD is read as GET; POST is read as what it may be
    /// turned into on the way.
    pub(super) fn guard(&self, method: &Method, path: &str) -> Option<&str> {
        match *method {
            Method::HEAD => self.find(&Method::GET, path),
            Method::POST => [Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
                .iter()
                .find_map(|method| self.find(method, path)),
            _ => None,
        }
        .or_else(|| self.find(method, path))
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .case_insensitive(true)
        .size_limit(SIZE_LIMIT)
        .build()
        .map_err(|_| format!("{pattern}: cannot be compiled without regard to case"))
}
