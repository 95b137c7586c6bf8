//! Reads `data.yaml` as JSON. As in the configuration, the file must be one document of YAML
//! without anchors, aliases and tags.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Limit on the nesting of sequences and mappings, as for JSON. A document that exceeds it is
/// refused.
const MAX_DEPTH: usize = 127;

enum Frame {
    Sequence(Vec<Value>),
    Mapping(Map<String, Value>, Option<String>),
}

/// Reads a document. Refuses anchors, aliases, tags and repeated keys: with these, a text can mean
/// something else than it seems to.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        let line = span.start.line();
        let value = match event {
            Event::Scalar(text, style, 0, None) => Some(scalar(&text, style)),
            Event::SequenceStart(0, None) | Event::MappingStart(0, None)
                if frames.len() >= MAX_DEPTH =>
            {
                return Err(format!(
                    "line {line}: the value is nested more than {MAX_DEPTH} levels deep"
                ));
            }
            Event::SequenceStart(0, None) => {
                frames.push(Frame::Sequence(Vec::new()));
                None
            }
            Event::MappingStart(0, None) => {
                frames.push(Frame::Mapping(Map::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => frames.pop().map(|frame| match frame {
                Frame::Sequence(items) => Value::Array(items),
                Frame::Mapping(members, _) => Value::Object(members),
            }),
            Event::DocumentStart(_) if root.is_some() => {
                return Err(format!("line {line}: the file must have only one document"));
            }
            Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::MappingStart(..)
            | Event::Alias(_) => {
                return Err(format!(
                    "line {line}: anchors, aliases and tags are not supported"
                ));
            }
            _ => None,
        };
        let Some(value) = value else { continue };
        match frames.last_mut() {
            None => root = Some(value),
            Some(Frame::Sequence(items)) => items.push(value),
            Some(Frame::Mapping(members, key)) => {
                add_member(members, key, value).map_err(|error| format!("line {line}: {error}"))?;
            }
        }
    }
    Ok(root.unwrap_or(Value::Null))
}

/// Stores `value` as the value of `key` or, if there is no `key` yet, as the next key.
fn add_member(
    members: &mut Map<String, Value>,
    key: &mut Option<String>,
    value: Value,
) -> Result<(), String> {
    let Some(name) = key.take() else {
        let name = match value {
            Value::String(name) => name,
            Value::Array(_) | Value::Object(_) => return Err("a key must be a scalar".to_owned()),
            scalar => scalar.to_string(),
        };
        if members.contains_key(&name) {
            return Err(format!("the key {name:?} is repeated"));
        }
        *key = Some(name);
        return Ok(());
    };
    members.insert(name, value);
    Ok(())
}

/// Reads a scalar. As in the core schema of YAML 1.2, an unquoted scalar may be null, a boolean or
/// a number. Only numbers in the syntax of JSON, with an optional plus sign, are read as numbers:
/// `0x1F` is a string.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let number = text.strip_prefix('+').unwrap_or(text);
    match serde_json::from_str::<Number>(number) {
        Ok(number) => Value::Number(number),
        Err(_) => Value::String(text.to_owned()),
    }
}
