//! The input document of policies.

use std::sync::Arc;

use crate::raw_json::write_string;

/// The names of the input's members that policies read.
#[derive(Clone, Debug)]
pub struct ReadMembers(Option<Arc<[Box<str>]>>);

impl ReadMembers {
    /// All members.
    pub const ALL: Self = Self(None);

    /// The members with these names.
    pub fn named(names: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        Self(Some(names.into_iter().map(Into::into).collect()))
    }

    /// The union of the two sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (Some(names), Some(others)) = (&self.0, &other.0) else {
            return Self::ALL;
        };
        Self::named(names.iter().chain(&**others).cloned())
    }

    /// Whether policies read the member with this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names()
            .is_none_or(|names| names.iter().any(|one| **one == *name))
    }

    /// The names, which may repeat; `None` for all members.
    #[must_use]
    pub fn names(&self) -> Option<&[Box<str>]> {
        self.0.as_deref()
    }
}

/// A JSON object, without the members that no policy reads.
#[derive(Clone, Debug)]
pub struct PolicyInput {
    reads: ReadMembers,
    /// The values as JSON, one after another.
    values: String,
    /// The name of each member, and the end of its value in `values`.
    members: Vec<(&'static str, usize)>,
    /// The total length of the values that were left out. A string counts without quotes and
    /// escapes.
    left_out: usize,
}

impl PolicyInput {
    /// Creates an object that keeps only the members that policies read.
    #[must_use]
    pub fn of(reads: ReadMembers) -> Self {
        // Few inputs need more. Buffers that grow from nothing would be copied several times.
        Self {
            reads,
            values: String::with_capacity(512),
            members: Vec::with_capacity(16),
            left_out: 0,
        }
    }

    /// Whether policies read the member with this name.
    #[must_use]
    pub fn reads(&self, name: &str) -> bool {
        self.reads.contains(name)
    }

    /// Adds a member. `value` is JSON text.
    pub fn json(&mut self, name: &'static str, value: &str) {
        self.add(name, value, |value, values| values.push_str(value));
    }

    /// Adds a member that is a string.
    pub fn text(&mut self, name: &'static str, value: &str) {
        self.add(name, value, write_string);
    }

    fn add(&mut self, name: &'static str, value: &str, write: impl FnOnce(&str, &mut String)) {
        if self.reads(name) {
            write(value, &mut self.values);
            self.members.push((name, self.values.len()));
        } else {
            self.left_out = self.left_out.saturating_add(value.len());
        }
    }

    /// Adds a member that is a string, or `null`.
    pub fn text_or_null(&mut self, name: &'static str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value),
            None => self.json(name, "null"),
        }
    }

    /// The length of all values in bytes, including the values that were left out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.values.len().saturating_add(self.left_out)
    }

    /// The length of the values that policies read, in bytes.
    #[must_use]
    pub fn read_bytes(&self) -> usize {
        self.values.len()
    }

    /// The names and the values, which are JSON text, of the members that policies read.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut begin = 0;
        self.members.iter().map(move |(name, end)| {
            let value = self.values.get(begin..*end).unwrap_or_default();
            begin = *end;
            (*name, value)
        })
    }
}
