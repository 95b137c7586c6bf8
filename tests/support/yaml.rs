//! YAML as JSON values.

use saphyr_parser::{Event, Parser, StrInput};
use serde_json::Value;

/// Parses one YAML document of mappings, sequences and scalars; every scalar becomes a string.
pub fn yaml(text: &str) -> Value {
    value(&mut Parser::new_from_str(text)).unwrap()
}

/// Parses each document of a file, separated by lines `---`.
pub fn yaml_documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(yaml).collect()
}

fn value(events: &mut Parser<'_, StrInput<'_>>) -> Option<Value> {
    loop {
        return match events.next().unwrap().unwrap().0 {
            Event::Scalar(text, ..) => Some(Value::from(text.as_ref())),
            Event::SequenceStart(..) => Some(
                std::iter::from_fn(|| value(events))
                    .collect::<Vec<_>>()
                    .into(),
            ),
            Event::MappingStart(..) => {
                let pairs = std::iter::from_fn(|| {
                    let key = value(events)?.as_str()?.to_owned();
                    Some((key, value(events)?))
                });
                Some(Value::Object(pairs.collect()))
            }
            Event::SequenceEnd | Event::MappingEnd => None,
            _ => continue,
        };
    }
}
