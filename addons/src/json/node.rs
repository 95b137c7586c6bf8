//! JSON as a tree that is serialized without loss.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::cursor::{self, Cursor};
use super::strict::MAX_NESTING;
use super::{RawJsonError, refuse_duplicates, write_string};

/// One value. A scalar that was read is the received text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// An object: its members in the order of the text, without duplicate keys.
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// An array.
    Array(Vec<Node<'a>>),
    /// Any other value, as JSON text.
    Scalar(Cow<'a, str>),
}

impl<'a> Node<'a> {
    /// Builds the tree of a value.
    pub fn read(value: &'a RawValue) -> Result<Self, RawJsonError> {
        Self::parse(value.get())
    }

    /// Like [`read`](Self::read), for the text of a value inside a [`RawValue`].
    pub fn parse(json: &'a str) -> Result<Self, RawJsonError> {
        Self::read_at(&mut Cursor::new(json), 0)
    }

    /// Reads the value at the cursor. `depth` is the number of containers around the value.
    fn read_at(cursor: &mut Cursor<'a>, depth: usize) -> Result<Self, RawJsonError> {
        if depth >= MAX_NESTING && matches!(cursor.peek(), Some(b'{' | b'[')) {
            return Err(RawJsonError::TooDeep);
        }
        let below = depth.saturating_add(1);
        if cursor.take(b'{') {
            let mut members = Vec::new();
            while !cursor.take(b'}') {
                let key = cursor.key()?;
                members.push((key, Self::read_at(cursor, below)?));
                cursor.take(b',');
            }
            refuse_duplicates(&members)?;
            return Ok(Self::Object(members));
        }
        if cursor.take(b'[') {
            let mut elements = Vec::new();
            while !cursor.take(b']') {
                elements.push(Self::read_at(cursor, below)?);
                cursor.take(b',');
            }
            return Ok(Self::Array(elements));
        }
        Ok(Self::Scalar(Cow::Borrowed(cursor.skip_value())))
    }

    /// Makes a string.
    #[must_use]
    pub fn string(text: &str) -> Self {
        let mut json = String::new();
        write_string(text, &mut json);
        Self::Scalar(json.into())
    }

    /// The text of a string; `None` for any other value.
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Scalar(json) => cursor::decode(json),
            Self::Object(_) | Self::Array(_) => None,
        }
    }

    /// A member of an object; `None` if the member is absent, or if this value is no object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let found = self.members().iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value)
    }

    /// The members of an object; empty for any other value.
    pub fn members(&self) -> &[(Cow<'a, str>, Self)] {
        match self {
            Self::Object(members) => members,
            Self::Array(_) | Self::Scalar(_) => &[],
        }
    }

    /// The elements of an array; empty for any other value.
    pub fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            Self::Object(_) | Self::Scalar(_) => &[],
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Object(members) => write_object(members.iter(), Self::write, out),
            Self::Array(elements) => write_array(elements, Self::write, out),
            Self::Scalar(json) => out.push_str(json),
        }
    }

    /// The value as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

/// Writes an object; `write` writes the values.
pub(super) fn write_object<'n, 'a: 'n>(
    members: impl Iterator<Item = &'n (Cow<'a, str>, Node<'a>)>,
    write: impl Fn(&Node<'a>, &mut String),
    out: &mut String,
) {
    out.push('{');
    for (at, (key, value)) in members.enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write(value, out);
    }
    out.push('}');
}

/// Writes an array; `write` writes the elements.
pub(super) fn write_array<'a>(
    elements: &[Node<'a>],
    write: impl Fn(&Node<'a>, &mut String),
    out: &mut String,
) {
    out.push('[');
    for (at, element) in elements.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(element, out);
    }
    out.push(']');
}

impl From<&serde_json::Value> for Node<'static> {
    fn from(value: &serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Object(members) => {
                let members = members.iter();
                let members = members.map(|(key, value)| (key.clone().into(), value.into()));
                Self::Object(members.collect())
            }
            Value::Array(elements) => Self::Array(elements.iter().map(Self::from).collect()),
            scalar => Self::Scalar(scalar.to_string().into()),
        }
    }
}
