//! Allowlist entries, and the map that finds the entry of a host.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;
use thiserror::Error;

use super::host::{AuthorityError, Host};
use super::level::Level;

/// The file and line of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file's name.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A host, or all names below a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Exactly this host.
    Exactly(Host),
    /// Any name below this one, at any depth, without the name itself.
    Below(Arc<str>),
}

/// Why a text is not a host pattern.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PatternError {
    /// The host itself is malformed.
    #[error("{0}")]
    Host(#[from] AuthorityError),
    /// `*` alone, a `*` that is not the whole first label, or `*.` before an address.
    #[error("a wildcard is only allowed in front of a name, as in *.example.com")]
    Star,
    /// A wildcard below a public suffix, such as `*.com`, which would match names that anybody can
    /// register. Also a wildcard below a single label, such as `*.localhost`.
    #[error(
        "*.{0} is too broad, since {0} is a public suffix or a single label: name a registrable \
         domain, as in *.example.com"
    )]
    PublicSuffix(String),
}

impl HostPattern {
    /// Parses `name`, an address, or `*.name`.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let Some(base) = text.strip_prefix("*.") else {
            if text.contains('*') {
                return Err(PatternError::Star);
            }
            return Ok(Self::Exactly(Host::parse(text)?));
        };
        if base.contains('*') {
            return Err(PatternError::Star);
        }
        match Host::parse(base)? {
            Host::Name(name) if is_public_suffix(&name) => {
                Err(PatternError::PublicSuffix(name.to_string()))
            }
            Host::Name(name) => Ok(Self::Below(name)),
            Host::Address(_) => Err(PatternError::Star),
        }
    }

    /// Whether at least one host matches both patterns.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_below = |name: &str, base: &str| {
            let rest = name.strip_suffix(base);
            rest.is_some_and(|rest| rest.ends_with('.'))
        };
        match (self, other) {
            (Self::Exactly(one), Self::Exactly(other)) => one == other,
            (Self::Exactly(host), Self::Below(base)) | (Self::Below(base), Self::Exactly(host)) => {
                host.name().is_some_and(|name| is_below(name, base))
            }
            (Self::Below(one), Self::Below(other)) => {
                one == other || is_below(one, other) || is_below(other, one)
            }
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(host) => write!(f, "{host}"),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// Whether the name is in the public suffix list. A single label that the list does not know, such
/// as `localhost`, counts as a public suffix too.
fn is_public_suffix(name: &str) -> bool {
    psl::suffix_str(name).is_none_or(|suffix| suffix == name)
}

/// Whether the host is a name that somebody has registered, or a name below it. Addresses, single
/// labels, public suffixes and names outside the public suffix list are none.
#[must_use]
pub fn is_public_name(host: &Host) -> bool {
    host.name().is_some_and(|name| {
        let suffix = psl::suffix(name.as_bytes());
        suffix.is_some_and(|suffix| suffix.is_known() && suffix != name)
    })
}

/// One entry of the allowlist, or a host that a person has granted.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The hosts that it matches.
    pub pattern: HostPattern,
    /// The pattern as text. It is the `upstream` label of metrics, the name of a rate-limit bucket,
    /// and the rule that the audit names.
    pub label: Arc<str>,
    /// The permitted ports.
    pub ports: Vec<u16>,
    /// Whether WebSockets may be opened.
    pub websocket: bool,
    /// The highest security level of containers that may reach the hosts.
    pub max_level: Level,
    /// Its place in the configuration.
    pub origin: Origin,
    /// The id of the grant of a host that is on no allowlist or, if it was approved for every
    /// container, of the question; `None` for an entry of the configuration.
    pub grant: Option<Box<str>>,
}

/// The allowlist, for HTTP and DNS alike.
pub type Allowlist = EntryMap<Arc<Entry>>;

/// Hosts of the configuration, with a value for each. A fast hash is safe, since clients look up
/// and never insert.
pub type HostMap<T> = HashMap<Host, T, RandomState>;

/// Hosts of the configuration.
pub type HostSet = HashSet<Host, RandomState>;

/// Maps hosts to values, by exact host or by the longest matching wildcard. A look-up takes at most
/// one probe for each label, independent of the number of patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMap<T> {
    exact: HostMap<T>,
    below: HashMap<Arc<str>, T, RandomState>,
}

impl<T> Default for EntryMap<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::default(),
            below: HashMap::default(),
        }
    }
}

impl<T> FromIterator<(HostPattern, T)> for EntryMap<T> {
    fn from_iter<I: IntoIterator<Item = (HostPattern, T)>>(values: I) -> Self {
        let mut map = Self::default();
        for (pattern, value) in values {
            map.insert(pattern, value);
        }
        map
    }
}

impl<T> EntryMap<T> {
    /// Adds a pattern; returns the value that it replaces.
    pub fn insert(&mut self, pattern: HostPattern, value: T) -> Option<T> {
        match pattern {
            HostPattern::Exactly(host) => self.exact.insert(host, value),
            HostPattern::Below(name) => self.below.insert(name, value),
        }
    }

    /// The value that was inserted with exactly this pattern, whatever other patterns match.
    pub fn get(&self, pattern: &HostPattern) -> Option<&T> {
        match pattern {
            HostPattern::Exactly(host) => self.exact.get(host),
            HostPattern::Below(name) => self.below.get(name),
        }
    }

    /// The value of the most specific pattern that matches: the host itself, else the longest
    /// wildcard.
    pub fn find(&self, host: &Host) -> Option<&T> {
        if let Some(value) = self.exact.get(host) {
            return Some(value);
        }
        if self.below.is_empty() {
            return None;
        }
        let mut rest = host.name()?;
        while let Some((_, parent)) = rest.split_once('.') {
            if let Some(value) = self.below.get(parent) {
                return Some(value);
            }
            rest = parent;
        }
        None
    }

    /// Whether the map has no pattern.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty()
    }

    /// Every pattern with its value, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (HostPattern, &T)> {
        let exact = self.exact.iter();
        let exact = exact.map(|(host, value)| (HostPattern::Exactly(host.clone()), value));
        let below = self.below.iter();
        exact.chain(below.map(|(name, value)| (HostPattern::Below(Arc::clone(name)), value)))
    }

    /// Every value, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.below.values())
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn matches(pattern: &str, host: &str) -> bool {
        let mut map = EntryMap::default();
        map.insert(HostPattern::parse(pattern).unwrap(), ());
        map.find(&Host::parse(host).unwrap()).is_some()
    }

    #[test]
    fn a_wildcard_matches_names_at_any_depth_below_the_apex_but_not_the_apex() {
        assert!(matches("*.example.com", "a.example.com"));
        assert!(matches("*.example.com", "a.b.example.com"));
        assert!(!matches("*.example.com", "example.com"));
        assert!(!matches("*.example.com", "evilexample.com"));
        assert!(!matches("example.com", "a.example.com"));
        assert!(!matches("*.example.com", "a.example.com.evil.example"));
    }

    #[test]
    fn malformed_wildcards_and_wildcards_over_public_suffixes_are_refused() {
        each_row(
            [
                "*",
                "*.com",
                "*.co.uk",
                "*.github.io",
                "*.localhost",
                "a.*.com",
                "*.*.com",
                "*a.example.com",
                "*.127.0.0.1",
            ],
            |pattern| {
                assert!(HostPattern::parse(pattern).is_err(), "{pattern}");
            },
        );
    }

    #[test]
    fn the_most_specific_pattern_wins() {
        let mut map = EntryMap::default();
        for pattern in ["*.example.com", "*.a.example.com", "x.a.example.com"] {
            map.insert(HostPattern::parse(pattern).unwrap(), pattern);
        }
        let find = |host| map.find(&Host::parse(host).unwrap()).copied();
        assert_eq!(find("x.a.example.com"), Some("x.a.example.com"));
        assert_eq!(find("y.a.example.com"), Some("*.a.example.com"));
        assert_eq!(find("y.example.com"), Some("*.example.com"));
        assert_eq!(find("example.com"), None);
    }
}
