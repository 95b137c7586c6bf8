//! Parses JSON and refuses duplicate keys.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

/// Parses a whole body. The error has the reason; if the body is not JSON, also the position.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let parsed = serde_json::from_slice(body).and_then(|Unambiguous(value)| T::deserialize(value));
    parsed.map_err(|error| error.to_string())
}

/// A value without duplicate keys at any depth.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values).map(Self)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
            }
            let Unambiguous(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn duplicate_keys_and_deep_nesting_are_refused_and_other_json_is_parsed_as_by_serde_json() {
        let text = r#"{"a": [1, -2, 0.5, null, true, "x"], "b": {"a": {}}}"#;
        assert_eq!(
            parse::<Value>(text.as_bytes()),
            Ok(serde_json::from_str(text).unwrap())
        );
        each_row(
            [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#],
            |text| {
                let error = parse::<Value>(text.as_bytes()).unwrap_err();
                assert!(error.contains("duplicate field `a`"), "{error}");
            },
        );
        let deep = "[".repeat(100_000);
        assert!(parse::<Value>(deep.as_bytes()).is_err());
    }
}
