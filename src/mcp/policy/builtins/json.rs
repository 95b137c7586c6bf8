//! JSON: reading, writing and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use regorus::Value;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Outcome, Stop, elements, object, string, unsupported};

/// Limit on the nesting of a text that Go reads.
const MAX_DEPTH: usize = 10_000;
/// Limit on the segments of a path. A tree of paths is dropped recursively.
const MAX_SEGMENTS: usize = 200;

pub fn is_valid(text: &Value) -> Outcome {
    Ok(Value::from(string(text).is_ok_and(is_json)))
}

/// Whether a text is JSON. Reads no number and no character.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok() && depth(text) <= MAX_DEPTH
}

/// The deepest nesting of arrays and objects in a JSON text.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for token in outside_strings(text) {
        match token {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The bytes of a JSON text outside its strings.
fn outside_strings(text: &str) -> impl Iterator<Item = u8> {
    let (mut in_string, mut escaped) = (false, false);
    text.bytes().filter(move |byte| {
        let was_in_string = in_string;
        match byte {
            b'"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = in_string && *byte == b'\\' && !escaped;
        !was_in_string && !in_string
    })
}

pub fn unmarshal(text: &Value) -> Outcome {
    let text = string(text)?;
    if !is_json(text) {
        return Err(Stop::Undefined);
    }
    let is_number = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let outside: Vec<u8> = outside_strings(text).collect();
    for token in outside.split(|byte| !is_number(byte)) {
        let digits = token.strip_prefix(b"-").unwrap_or(token);
        let is_long = digits.len() > 18 && digits.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(token).unwrap_or_default();
        if is_long && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
            return unsupported("an integer has more than 64 bits");
        }
    }
    // Go replaces a surrogate without its other half.
    read_json(text).or_else(|error| unsupported(error.to_string()))
}

/// Reads a JSON text. Unlike [`Value::from_json_str`], reads no number from the object that stands
/// for one in serde_json: the text of such a number may stand for millions of digits.
pub fn read_json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).map(|Json(value)| value)
}

struct Json(Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = BTreeMap::new();
        while let Some((Json(name), Json(member))) = members.next_entry()? {
            object.insert(name, member);
        }
        Ok(Value::from(object))
    }
}

pub fn marshal(value: &Value) -> Outcome {
    let mut text = String::new();
    write(&mut text, value, None, 0);
    Ok(Value::from(text))
}

pub fn marshal_with_options(value: &Value, options: &Value) -> Outcome {
    let (mut prefix, mut indent, mut pretty) = ("", "\t", None);
    let options = object(options)?;
    for (name, option) in options.iter() {
        match (string(name)?, option) {
            ("prefix", option) => prefix = string(option)?,
            ("indent", option) => indent = string(option)?,
            ("pretty", Value::Bool(option)) => pretty = Some(*option),
            _ => return Err(Stop::Undefined),
        }
    }
    let mut text = String::new();
    if pretty.unwrap_or(!options.is_empty()) {
        text.push_str(prefix);
        write(&mut text, value, Some((prefix, indent)), 0);
    } else {
        write(&mut text, value, None, 0);
    }
    Ok(Value::from(text))
}

/// Appends a value as Go's `json.Marshal` writes it, or as `json.MarshalIndent` does with a prefix
/// and an indentation.
fn write(text: &mut String, value: &Value, style: Option<(&str, &str)>, depth: usize) {
    let list = |text: &mut String, items: &[&Value]| {
        text.push('[');
        for (at, item) in items.iter().enumerate() {
            begin(text, at, style, depth + 1);
            write(text, item, style, depth + 1);
        }
        finish(text, items.len(), style, depth);
        text.push(']');
    };
    match value {
        Value::Null | Value::Undefined => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => text.push_str(&number.format_decimal()),
        Value::String(string) => write_string(text, string),
        Value::Array(items) => list(text, &items.iter().collect::<Vec<_>>()),
        Value::Set(items) => list(text, &items.iter().collect::<Vec<_>>()),
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields
                .iter()
                .map(|(key, value)| (key_text(key), value))
                .collect();
            text.push('{');
            for (at, (key, value)) in fields.iter().enumerate() {
                begin(text, at, style, depth + 1);
                write_string(text, key);
                text.push_str(if style.is_some() { ": " } else { ":" });
                write(text, value, style, depth + 1);
            }
            finish(text, fields.len(), style, depth);
            text.push('}');
        }
    }
}

/// Separates an item from the one in front of it.
fn begin(text: &mut String, at: usize, style: Option<(&str, &str)>, depth: usize) {
    if at > 0 {
        text.push(',');
    }
    new_line(text, style, depth);
}

fn finish(text: &mut String, items: usize, style: Option<(&str, &str)>, depth: usize) {
    if items > 0 {
        new_line(text, style, depth);
    }
}

fn new_line(text: &mut String, style: Option<(&str, &str)>, depth: usize) {
    if let Some((prefix, indent)) = style {
        text.push('\n');
        text.push_str(prefix);
        text.extend(std::iter::repeat_n(indent, depth));
    }
}

fn write_string(text: &mut String, string: &str) {
    let quoted = serde_json::to_string(string).unwrap_or_default();
    for character in quoted.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => text.push(character),
        }
    }
}

/// The name of an object's member in JSON: a string, or the JSON text of another key.
pub fn key_text(key: &Value) -> String {
    match key {
        Value::String(name) => (**name).to_owned(),
        _ => {
            let mut text = String::new();
            write(&mut text, key, None, 0);
            text
        }
    }
}

pub fn filter(value: &Value, paths: &Value) -> Outcome {
    object(value)?;
    Ok(Paths::parse(paths)?.select(value))
}

pub fn remove(value: &Value, paths: &Value) -> Outcome {
    object(value)?;
    Paths::parse(paths)?.omit(value).ok_or(Stop::Undefined)
}

/// The paths of `json.filter` and `json.remove` as a tree.
enum Paths {
    /// A path ends here.
    End,
    /// The paths by their next segments. The segment of an array is a string.
    Through(BTreeMap<Value, Paths>),
}

impl Paths {
    /// Reads a list of paths: strings with `/` between the segments, or lists of segments.
    fn parse(paths: &Value) -> Result<Self, Stop> {
        let mut root = Self::Through(BTreeMap::new());
        for path in elements(paths)? {
            let segments: Vec<Value> = match path {
                Value::String(path) if path.is_empty() => Vec::new(),
                Value::String(path) => {
                    let segments = path.trim_start_matches('/').split('/');
                    let segments = segments.map(|name| name.replace("~1", "/").replace("~0", "~"));
                    segments.map(Value::from).collect()
                }
                Value::Array(segments) => segments.to_vec(),
                _ => return Err(Stop::Undefined),
            };
            if segments.len() > MAX_SEGMENTS {
                return unsupported(format!("a path has more than {MAX_SEGMENTS} segments"));
            }
            root.insert(&segments);
        }
        Ok(root)
    }

    fn insert(&mut self, path: &[Value]) {
        match (self, path) {
            (Self::Through(next), [segment]) => {
                next.insert(segment.clone(), Self::End);
            }
            (Self::Through(next), [segment, rest @ ..]) => next
                .entry(segment.clone())
                .or_insert_with(|| Self::Through(BTreeMap::new()))
                .insert(rest),
            // A shorter path ends here, or the path is empty.
            (Self::End, _) | (_, []) => {}
        }
    }

    /// The parts of a value at the paths.
    fn select(&self, value: &Value) -> Value {
        let Self::Through(next) = self else {
            return value.clone();
        };
        match value {
            Value::Object(fields) => {
                let selected = next
                    .iter()
                    .filter_map(|(key, paths)| Some((key.clone(), paths.select(fields.get(key)?))));
                Value::from(selected.collect::<BTreeMap<_, _>>())
            }
            Value::Set(members) => {
                let selected = next
                    .iter()
                    .filter_map(|(key, paths)| Some(paths.select(members.get(key)?)));
                Value::from(selected.collect::<BTreeSet<_>>())
            }
            Value::Array(items) => {
                let selected = items.iter().enumerate().filter_map(|(at, item)| {
                    Some(next.get(&Value::from(at.to_string()))?.select(item))
                });
                Value::from(selected.collect::<Vec<_>>())
            }
            scalar => scalar.clone(),
        }
    }

    /// A value without the parts at the paths; `None` if nothing is left of it.
    fn omit(&self, value: &Value) -> Option<Value> {
        let Self::Through(next) = self else {
            return None;
        };
        let omit = |key: &Value, value: &Value| match next.get(key) {
            Some(paths) => paths.omit(value),
            None => Some(value.clone()),
        };
        Some(match value {
            Value::Object(fields) => {
                let left = fields
                    .iter()
                    .filter_map(|(key, value)| Some((key.clone(), omit(key, value)?)));
                Value::from(left.collect::<BTreeMap<_, _>>())
            }
            Value::Set(members) => {
                let left = members.iter().filter_map(|member| omit(member, member));
                Value::from(left.collect::<BTreeSet<_>>())
            }
            Value::Array(items) => {
                let left = items
                    .iter()
                    .enumerate()
                    .filter_map(|(at, item)| omit(&Value::from(at.to_string()), item));
                Value::from(left.collect::<Vec<_>>())
            }
            scalar => scalar.clone(),
        })
    }
}
