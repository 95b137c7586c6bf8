//! The id of a lease.

use std::fmt;

use uuid::Uuid;

/// Identifies a lease across all containers, restarts, backups and proxies.
///
/// A UUID of version 7 (RFC 9562, section 5.7): ids are never reused, and sort by the time of their
/// generation if the clocks agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// Generates a new id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The last 48 bits in hexadecimal, at least 32 of them random, for names that must be short.
    #[must_use]
    pub fn short(self) -> String {
        let (_, node) = self.0.as_u64_pair();
        format!("{:012x}", node & 0xffff_ffff_ffff)
    }

    /// Parses the hyphenated lower-case form that `Display` writes; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = Uuid::try_parse(text).ok()?;
        let canonical = id.hyphenated();
        let same = canonical.encode_lower(&mut Uuid::encode_buffer()) == text;
        same.then_some(Self(id))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_age_and_have_one_written_form() {
        let (first, second) = (LeaseId::generate(), LeaseId::generate());
        assert!(first < second);
        assert_eq!(size_of::<LeaseId>(), 16);
        let text = first.to_string();
        assert_eq!(LeaseId::parse(&text), Some(first));
        let others = [
            text.to_uppercase(),
            text.replace('-', ""),
            format!("{{{text}}}"),
            format!("urn:uuid:{text}"),
            "7".to_owned(),
            String::new(),
        ];
        for other in others {
            assert_eq!(LeaseId::parse(&other), None, "{other}");
        }
    }
}
