//! Reads and edits JSON in the received text, so that number forms, key order and unknown members
//! are preserved.
//!
//! There are two readers: [`strict`] checks bytes of any content, and the others walk the text of a
//! [`RawValue`], which is valid JSON and would otherwise be validated again at each look-up. Reading
//! takes linear time in the length of the text.

mod canonical;
mod cursor;
mod node;
pub mod strict;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde_json::value::RawValue;
use thiserror::Error;

use cursor::Cursor;
use strict::MAX_NESTING;

pub use canonical::{canonical, sha256_hex};
pub use node::Node;

/// Why a JSON text is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RawJsonError {
    /// The value is not an object.
    #[error("it is not an object")]
    NotAnObject,
    /// An object has a key twice. Which value counts depends on the parser.
    #[error("duplicate key in an object")]
    DuplicateKey,
    /// Nested deeper than [`MAX_NESTING`].
    #[error("it is nested more than {MAX_NESTING} levels deep")]
    TooDeep,
    /// A key has an unpaired surrogate.
    #[error("a key has an unpaired surrogate")]
    BadKey,
}

/// Objects with up to this many members have their keys compared without a hash table.
const FEW: usize = 16;

/// The members of one object. The values are the received text.
#[derive(Clone, Debug, Default)]
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Members<'a> {
    /// Splits an object into its members. Refuses duplicate keys, compared after decoding escapes.
    pub fn read(object: &'a RawValue) -> Result<Self, RawJsonError> {
        Self::parse(object.get())
    }

    /// Like [`read`](Self::read), for the text of a value inside a [`RawValue`].
    pub fn parse(text: &'a str) -> Result<Self, RawJsonError> {
        let mut cursor = Cursor::new(text);
        if !cursor.take(b'{') {
            return Err(RawJsonError::NotAnObject);
        }
        // Few objects in messages have more members.
        let mut members = Vec::with_capacity(8);
        while !cursor.take(b'}') {
            let key = cursor.key()?;
            members.push((key, cursor.skip_value()));
            cursor.take(b',');
        }
        refuse_duplicates(&members)?;
        Ok(Self(members))
    }

    /// The value of a member, as JSON text; `None` if it is absent.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| *value)
    }

    /// The place of a member's value in `text`, the text that the members were read from; `None` if
    /// the member is absent.
    pub fn place(&self, key: &str, text: &RawValue) -> Option<Range<usize>> {
        let value = self.get(key)?;
        let start = value
            .as_ptr()
            .addr()
            .checked_sub(text.get().as_ptr().addr())?;
        Some(start..start + value.len())
    }

    /// The text of a member that is a string. `None` if the member is absent or not a string, or if
    /// the string has an unpaired surrogate.
    pub fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        cursor::decode(self.get(key)?)
    }

    /// The members of a member that is an object; `None` if it is absent. Fails if
    /// [`parse`](Self::parse) refuses its text.
    pub fn members(&self, key: &str) -> Result<Option<Self>, RawJsonError> {
        self.get(key).map(Self::parse).transpose()
    }

    /// The elements of a member that is an array; empty if the member is absent or not an array.
    pub fn elements(&self, key: &str) -> Vec<&'a str> {
        let mut cursor = Cursor::new(self.get(key).unwrap_or_default());
        let mut elements = Vec::new();
        if cursor.take(b'[') {
            while !cursor.take(b']') {
                elements.push(cursor.skip_value());
                cursor.take(b',');
            }
        }
        elements
    }

    /// The first key that equals one of these names to a server that ignores case, but is spelled
    /// differently. Such a server might read this member instead of the named one.
    pub fn other_spelling(&self, names: &[&str]) -> Option<&str> {
        let is_other = |key: &&str| names.iter().any(|name| key != name && same_name(key, name));
        self.iter().map(|(key, _)| key).find(is_other)
    }

    /// Keys and values in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(key, value)| (&**key, *value))
    }

    /// The object as JSON, with one member replaced or added. `value` is JSON text.
    #[must_use]
    pub fn with(&self, key: &str, value: &str) -> String {
        let mut object = ObjectText::default();
        for (name, old) in self.iter() {
            object.member(name, if name == key { value } else { old });
        }
        if self.get(key).is_none() {
            object.member(key, value);
        }
        object.end()
    }
}

/// Whether two names are equal to a server that compares them case-insensitively, as Go's
/// `encoding/json` does.
pub fn same_name(one: &str, other: &str) -> bool {
    if one.is_ascii() && other.is_ascii() {
        return one.eq_ignore_ascii_case(other);
    }
    let fold = |text: &str| text.to_uppercase().to_lowercase();
    fold(one) == fold(other)
}

/// Writes an object from members whose values are JSON text.
#[derive(Debug)]
pub struct ObjectText(String);

impl Default for ObjectText {
    fn default() -> Self {
        // Few objects are longer. Without a capacity, the text would be copied whenever it grows.
        Self(String::with_capacity(256))
    }
}

impl ObjectText {
    /// Adds a member. `value` is JSON text.
    pub fn member(&mut self, key: &str, value: &str) {
        self.key(key);
        self.0.push_str(value);
    }

    /// Adds a member that is a string.
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        write_string(value, &mut self.0);
    }

    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        write_string(key, &mut self.0);
        self.0.push(':');
    }

    /// Ends the object and returns its text.
    #[must_use]
    pub fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

/// Writes a text as a JSON string.
pub fn write_string(text: &str, out: &mut String) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

fn refuse_duplicates<V>(members: &[(Cow<'_, str>, V)]) -> Result<(), RawJsonError> {
    let twice = if members.len() <= FEW {
        let is_before = |at, key| members.iter().take(at).any(|(other, _)| other == key);
        let mut members = members.iter().enumerate();
        members.any(|(at, (key, _))| is_before(at, key))
    } else {
        let mut seen = HashSet::with_capacity(members.len());
        members.iter().any(|(key, _)| !seen.insert(key))
    };
    if twice {
        return Err(RawJsonError::DuplicateKey);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
