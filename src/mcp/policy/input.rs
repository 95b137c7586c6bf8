//! Reads the members of an input that policies need.

use std::collections::BTreeMap;
use std::fmt;

use regorus::Value;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Parses the members of a JSON object that `is_read` names. The others are skipped: they are most
/// of the text.
pub fn read(text: &str, is_read: impl Fn(&str) -> bool) -> serde_json::Result<Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let input = reader.deserialize_map(Object(is_read))?;
    reader.end()?;
    Ok(input)
}

struct Object<F>(F);

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Object<F> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Value, M::Error> {
        let mut read = BTreeMap::new();
        while let Some(name) = members.next_key_seed(Name(&self.0))? {
            match name {
                Some(name) => {
                    // Half the time that `Value::from_json_str` takes, which collects equal keys.
                    read.insert(name, members.next_value::<Value>()?);
                }
                None => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::from(read))
    }
}

/// The name of a member. `None`: the member is not read.
struct Name<'f, F>(&'f F);

impl<'de, F: Fn(&str) -> bool> DeserializeSeed<'de> for Name<'_, F> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<F: Fn(&str) -> bool> Visitor<'_> for Name<'_, F> {
    type Value = Option<Value>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok((self.0)(name).then(|| Value::from(name)))
    }
}
