//! The input document of policies.

use crate::json::write_string;

/// A JSON object.
#[derive(Clone, Debug)]
pub struct PolicyInput {
    /// The values as JSON, one after another.
    values: String,
    /// The name of each member, and the end of its value in `values`.
    members: Vec<(&'static str, usize)>,
}

impl Default for PolicyInput {
    fn default() -> Self {
        // Few inputs need more. Buffers that grow from nothing would be copied several times.
        Self {
            values: String::with_capacity(512),
            members: Vec::with_capacity(16),
        }
    }
}

impl PolicyInput {
    /// Adds a member. `value` is JSON text.
    pub fn json(&mut self, name: &'static str, value: &str) {
        self.values.push_str(value);
        self.members.push((name, self.values.len()));
    }

    /// Adds a member that is a string.
    pub fn text(&mut self, name: &'static str, value: &str) {
        write_string(value, &mut self.values);
        self.members.push((name, self.values.len()));
    }

    /// Adds a member that is a string, or `null`.
    pub fn text_or_null(&mut self, name: &'static str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value),
            None => self.json(name, "null"),
        }
    }

    /// The length of all values in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.values.len()
    }

    /// The names and the values, which are JSON text.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut begin = 0;
        self.members.iter().map(move |(name, end)| {
            let value = self.values.get(begin..*end).unwrap_or_default();
            begin = *end;
            (*name, value)
        })
    }
}
