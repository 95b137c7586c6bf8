//! Reads JSON and refuses ambiguous texts.
//!
//! Parsers differ on duplicate keys, invalid UTF-8 and deep nesting, for which RFC 8259 prescribes
//! no behaviour. An upstream parses a judged text again and could read it differently, so texts
//! with any of these are refused.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use memchr::memchr2;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use smallvec::SmallVec;
use thiserror::Error;

/// Limit on the nesting of arrays and objects, equal to that of `serde_json`.
pub const MAX_NESTING: usize = 127;

/// Why a text is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StrictJsonError {
    /// Invalid UTF-8.
    #[error("the JSON is not UTF-8")]
    NotUtf8,
    /// Nested deeper than [`MAX_NESTING`], which also bounds the recursion of the parsers.
    #[error("the JSON is nested more than {MAX_NESTING} deep")]
    TooDeep,
    /// More values than the caller permits.
    #[error("the JSON has more than {0} values")]
    TooMany(usize),
    /// Not JSON, or an object with a duplicate or reserved key.
    #[error("the JSON is malformed: {0}")]
    Malformed(String),
}

/// Parses a text that is exactly one value. The tree of a short text such as `0` takes far more
/// memory than the text: [`count_values`] bounds both memory and time.
pub fn parse(bytes: &[u8]) -> Result<Value, StrictJsonError> {
    let text = check_at_most(usize::MAX, bytes)?;
    serde_json::from_str(text).map_err(malformed)
}

/// Checks, without building a tree, that a text is not ambiguous and has at most `most` values.
/// Returns the text. Used for JSON that is passed on as received.
pub fn check_at_most(most: usize, bytes: &[u8]) -> Result<&str, StrictJsonError> {
    let text = utf8(bytes)?;
    let left = Cell::new(Some(most));
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let checked = UniqueKeys { left: &left }.deserialize(&mut deserializer);
    match checked.and_then(|()| deserializer.end()) {
        Err(_) if left.get().is_none() => Err(StrictJsonError::TooMany(most)),
        checked => checked.map(|()| text).map_err(malformed),
    }
}

/// Counts the values of a text without parsing it: one, plus the commas and opening brackets outside
/// strings, which is never lower than a parser's count. Refuses a text that is not UTF-8, is nested
/// too deep or has more than `most` values. Does not check whether brackets match.
pub fn count_values(most: usize, bytes: &[u8]) -> Result<usize, StrictJsonError> {
    utf8(bytes)?;
    let (mut depth, mut nesting, mut values) = (0_usize, 0, 1);
    let mut rest = bytes;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'"' => rest = after_string(rest),
            b',' => values += 1,
            b'[' | b'{' => {
                values += 1;
                depth += 1;
                nesting = nesting.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if nesting > MAX_NESTING {
        return Err(StrictJsonError::TooDeep);
    }
    if values > most {
        return Err(StrictJsonError::TooMany(most));
    }
    Ok(values)
}

fn utf8(bytes: &[u8]) -> Result<&str, StrictJsonError> {
    std::str::from_utf8(bytes).map_err(|_| StrictJsonError::NotUtf8)
}

fn malformed(error: serde_json::Error) -> StrictJsonError {
    match error.to_string() {
        error if error.starts_with("recursion limit exceeded") => StrictJsonError::TooDeep,
        error => StrictJsonError::Malformed(error),
    }
}

/// The text after a string whose opening quote was read; empty if the string has no end.
pub(super) fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        // A backslash escapes the byte after it.
        let taken = if rest.get(at) == Some(&b'"') { 1 } else { 2 };
        rest = rest.get(at.saturating_add(taken)..).unwrap_or_default();
        if taken == 1 {
            return rest;
        }
    }
    &[]
}

/// The prefix of keys that `serde_json` reserves. It deserializes an object with such a key as the
/// JSON text in the key's value, which this module would not have checked.
const PRIVATE_KEYS: &str = "$serde_json::private::";

fn refuse_private<E: serde::de::Error>(key: &str) -> Result<(), E> {
    if key.starts_with(PRIVATE_KEYS) {
        return Err(E::custom("a key is reserved"));
    }
    Ok(())
}

/// Refuses duplicate and reserved keys. Stores only the keys of the objects that have not ended.
#[derive(Clone, Copy)]
struct UniqueKeys<'c> {
    /// How many more values are permitted; `None` once there were too many.
    left: &'c Cell<Option<usize>>,
}

impl<'de> DeserializeSeed<'de> for UniqueKeys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let left = self.left.get().and_then(|left| left.checked_sub(1));
        self.left.set(left);
        left.ok_or_else(|| D::Error::custom("too many values"))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut keys = Keys::default();
        while let Some(key) = members.next_key_seed(KeyText)? {
            refuse_private(&key)?;
            if !keys.insert(key) {
                return Err(A::Error::custom("duplicate key in an object"));
            }
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}

/// The keys of one object: the first 8 are compared one by one, further ones are hashed.
#[derive(Default)]
struct Keys<'de> {
    few: SmallVec<[Cow<'de, str>; 8]>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> Keys<'de> {
    /// Adds a key. Returns whether it is new.
    fn insert(&mut self, key: Cow<'de, str>) -> bool {
        if self.few.contains(&key) {
            return false;
        }
        if self.few.len() < self.few.inline_size() {
            self.few.push(key);
            return true;
        }
        self.many.insert(key)
    }
}

/// Deserializes a key, borrowed from the text unless it has escapes.
struct KeyText;

impl<'de> DeserializeSeed<'de> for KeyText {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeyText {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::each_row;

    use super::*;
    use crate::json::{Node, RawJsonError};

    #[test]
    fn unambiguous_json_is_read() {
        each_row(
            [
                "null",
                "[]",
                " {\"a\": [1, -2, 3.5, \"x\\u0041\", true, null]} ",
                "{\"a\":{\"b\":1},\"c\":{\"b\":1}}",
                "\"]]]]{{{{\"",
            ],
            |text| {
                let plain: Value = serde_json::from_str(text).unwrap();
                assert_eq!(parse(text.as_bytes()), Ok(plain), "{text}");
                assert_eq!(check_at_most(99, text.as_bytes()), Ok(text), "{text}");
            },
        );
    }

    #[test]
    fn ambiguous_and_invalid_json_is_refused() {
        each_row(
            [
                &b""[..],
                b"{\"a\":1,\"a\":2}",
                b"{\"a\":1,\"\\u0061\":2}",
                b"[{\"x\":{\"a\":1,\"b\":2,\"a\":1}}]",
                b"{\"a\":\"\xff\"}",
                b"\xef\xbb\xbf{}",
                b"{} {}",
                b"{}x",
                b"{'a':1}",
                b"{\"a\":1,}",
                b"{\"a\":1/**/}",
                b"NaN",
                b"01",
                b"\"\\ud800\"",
                b"\"a\nb\"",
                b"{\"$serde_json::private::RawValue\":\"{}\"}",
                b"{\"$serde_json::private::Number\":\"5\"}",
                b"[{\"a\":{\"\\u0024serde_json::private::Number\":\"5\"}}]",
                b"{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"i\":1}",
            ],
            |text| {
                assert!(parse(text).is_err(), "{}", String::from_utf8_lossy(text));
            },
        );
    }

    #[test]
    fn nesting_over_the_limit_is_refused_and_brackets_in_strings_do_not_count() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(MAX_NESTING).as_bytes()).is_ok());
        each_row(
            [
                nested(MAX_NESTING + 1),
                "[".repeat(1 << 20),
                "{\"a\":".repeat(200_000),
            ],
            |bomb| {
                assert_eq!(parse(bomb.as_bytes()), Err(StrictJsonError::TooDeep));
                let checked = check_at_most(usize::MAX, bomb.as_bytes());
                assert_eq!(checked, Err(StrictJsonError::TooDeep));
            },
        );
        let quoted = format!("\"\\\"{}\"", "[".repeat(1000));
        assert!(parse(quoted.as_bytes()).is_ok());
    }

    #[test]
    fn a_text_with_too_many_values_is_refused() {
        let text = b"{\"a\":[1,2,3],\"b,[{\":4}";
        assert_eq!(count_values(6, text), Ok(6));
        assert_eq!(count_values(5, text), Err(StrictJsonError::TooMany(5)));
        assert!(check_at_most(6, text).is_ok());
        assert_eq!(check_at_most(5, text), Err(StrictJsonError::TooMany(5)));
    }

    proptest! {
        #[test]
        fn an_accepted_text_is_the_same_value_to_every_reader(text in "[\\[\\]{}\":,a0-2 \\\\]{0,24}") {
            let strict = parse(text.as_bytes());
            let lenient = serde_json::from_str::<Value>(&text);
            if let Ok(value) = &strict {
                let tree = Node::parse(&text).unwrap().to_json();
                let reread: Value = serde_json::from_str(&tree).unwrap();
                prop_assert_eq!(value, &reread);
                prop_assert!(count_values(usize::MAX, text.as_bytes()).is_ok());
            } else if lenient.is_ok() {
                prop_assert_eq!(Node::parse(&text).err(), Some(RawJsonError::DuplicateKey));
            }
        }
    }
}
