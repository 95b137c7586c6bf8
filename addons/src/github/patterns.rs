//! The configured patterns of paths, by method.

use std::collections::HashMap;

use http::Method;

use crate::contract::settings::PathPattern;

/// Patterns that are matched without regard to case, as GitHub matches paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(HashMap<Method, Vec<PathPattern>>);

impl FromIterator<(Method, Vec<PathPattern>)> for Patterns {
    fn from_iter<I: IntoIterator<Item = (Method, Vec<PathPattern>)>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

impl Patterns {
    /// Returns the first pattern of a method that matches the path.
    pub(super) fn find(&self, method: &Method, path: &str) -> Option<&str> {
        let mut patterns = self.0.get(method)?.iter();
        let found = patterns.find(|pattern| pattern.is_match(path))?;
        Some(found.as_str())
    }

    /// Returns the first pattern that matches a request. HEAD also matches patterns for GET. POST
    /// also matches patterns for PUT, PATCH and DELETE, since a parameter or header may override
    /// the method.
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
