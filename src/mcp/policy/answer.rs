//! The answer of a policy.

use std::fmt::Display;

use addons::contract::Effect;
use addons::json::strict;
use regorus::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The names of the values that make up an answer. If the entrypoint is a package, its rules have
/// these names. If the entrypoint is a rule, the members of its object have them.
pub const MEMBERS: [&str; 4] = ["decision", "reason", "modified", "metadata"];
/// Limit on the length of a reason, and of an unknown decision in an error, in bytes. Longer text
/// is truncated, since it is sent to the agent and written to the audit log.
const MAX_REASON_BYTES: usize = 1024;
/// The error of a redaction without a replacement.
const NOTHING_MODIFIED: &str = "the decision is redact, and `modified` is undefined";
/// Limit on the length of `metadata`, in bytes of JSON. Longer metadata is left out.
const MAX_METADATA_BYTES: usize = 4096;
/// Reason of an undefined decision.
const UNDEFINED: &str = "the policy is undefined for this input";

/// A decision and its reason.
#[derive(Debug)]
pub struct Answer {
    /// The effect of the decision.
    pub effect: Effect,
    /// The policy's reason, if it gives one; a fixed sentence if the decision is undefined.
    pub reason: Option<String>,
    /// The replacement of [`Effect::Redact`].
    pub modified: Option<Box<RawValue>>,
    /// The `metadata`, if it is an object of at most [`MAX_METADATA_BYTES`].
    pub metadata: Option<Box<RawValue>>,
}

/// Reads the value of the generated rule that collects an answer. The value is a list of lists:
/// either one list with the entrypoint's object, or a list for each of [`MEMBERS`]. An inner list is
/// empty if its value is undefined. An undefined decision is [`Effect::DenyContinue`].
pub fn read(value: &Value) -> Result<Answer, String> {
    let Value::Array(lists) = value else {
        return Err(wrong("the policy has no answer"));
    };
    let first = |list: &Value| match list {
        Value::Array(items) => items.first().cloned().unwrap_or(Value::Undefined),
        _ => Value::Undefined,
    };
    match &*lists.iter().map(first).collect::<Vec<_>>() {
        [Value::Undefined] => of_members([const { Value::Undefined }; 4]),
        [object @ Value::Object(_)] => of_members(MEMBERS.map(|name| object[name].clone())),
        [decision, reason, modified, metadata] => {
            of_members([decision, reason, modified, metadata].map(Value::clone))
        }
        _ => Err(wrong("the entrypoint's value is not an object")),
    }
}

/// The answer that a command prints. `rationale` is another name for `reason`.
#[derive(Deserialize)]
struct Printed<'a> {
    decision: String,
    #[serde(alias = "rationale")]
    reason: Option<String>,
    #[serde(borrow)]
    modified: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

/// Reads the answer that a command has printed: one JSON object with the members [`MEMBERS`]. Other
/// members are ignored.
pub fn read_printed(text: &[u8]) -> Result<Answer, String> {
    let invalid = |error: &dyn Display| wrong(&format!("it printed no valid answer: {error}"));
    if text.trim_ascii().is_empty() {
        return Err(wrong("it printed nothing"));
    }
    let text = strict::check_at_most(usize::MAX, text).map_err(|error| invalid(&error))?;
    // An array could be deserialized, too.
    if !text.trim_start().starts_with('{') {
        return Err(invalid(&"it is not an object"));
    }
    let printed: Printed<'_> = serde_json::from_str(text).map_err(|error| invalid(&error))?;
    let effect = effect(&printed.decision)?;
    let modified = match (effect, printed.modified) {
        (Effect::Redact, Some(modified)) if modified.get().starts_with('{') => {
            Some(modified.to_owned())
        }
        (Effect::Redact, Some(_)) => return Err(wrong("`modified` is not an object")),
        (Effect::Redact, None) => return Err(wrong(NOTHING_MODIFIED)),
        _ => None,
    };
    Ok(Answer {
        effect,
        reason: printed.reason.as_deref().map(shortened),
        modified,
        metadata: printed.metadata.and_then(bounded_metadata),
    })
}

/// The effect of a decision.
fn effect(decision: &str) -> Result<Effect, String> {
    Effect::named(decision).ok_or_else(|| {
        let word = shortened(decision);
        wrong(&format!(
            "{word:?} is not a decision; the decisions are allow, deny_continue, deny_abort, ask and redact"
        ))
    })
}

fn of_members([decision, reason, modified, metadata]: [Value; 4]) -> Result<Answer, String> {
    let decision = match decision {
        Value::Undefined => {
            return Ok(Answer {
                effect: Effect::DenyContinue,
                reason: Some(UNDEFINED.to_owned()),
                modified: None,
                metadata: None,
            });
        }
        Value::String(word) => word,
        _ => return Err(wrong("`decision` is not a string")),
    };
    let reason = match reason {
        Value::Undefined => None,
        Value::String(text) => Some(shortened(&text)),
        _ => return Err(wrong("`reason` is not a string")),
    };
    let effect = effect(&decision)?;
    let modified = match effect {
        Effect::Redact => Some(replacement(modified)?),
        _ => None,
    };
    Ok(Answer {
        effect,
        reason,
        modified,
        metadata: serde_json::value::to_raw_value(&metadata)
            .ok()
            .and_then(|metadata| bounded_metadata(&metadata)),
    })
}

/// The metadata, if it is an object that is not too long.
fn bounded_metadata(metadata: &RawValue) -> Option<Box<RawValue>> {
    let text = metadata.get();
    let is_kept = text.starts_with('{') && text.len() <= MAX_METADATA_BYTES;
    is_kept.then(|| metadata.to_owned())
}

/// Converts `modified` to the JSON that replaces the message's arguments, params, result or error.
fn replacement(modified: Value) -> Result<Box<RawValue>, String> {
    match modified {
        object @ Value::Object(_) => {
            serde_json::value::to_raw_value(&object).map_err(|error| error.to_string())
        }
        Value::Undefined => Err(wrong(NOTHING_MODIFIED)),
        _ => Err(wrong("`modified` is not an object")),
    }
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_REASON_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

fn wrong(message: &str) -> String {
    message.to_owned()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn one_json_object_with_a_known_decision_is_an_answer() {
        each_row(
            [
                (r#"{"decision": "allow"}"#, "allow None None None"),
                (
                    " {\"decision\":\"ask\",\"reason\":\"why\"}\n",
                    "ask Some(\"why\") None None",
                ),
                (
                    r#"{"decision":"deny_abort","rationale":"r","x":[1]}"#,
                    "deny_abort Some(\"r\") None None",
                ),
                (
                    r#"{"decision":"redact","modified":{"n":1.50}}"#,
                    r#"redact None Some("{\"n\":1.50}") None"#,
                ),
                (
                    r#"{"decision":"allow","modified":{"n":1},"reason":null}"#,
                    "allow None None None",
                ),
                (
                    r#"{"decision":"allow","metadata":{"n":1}}"#,
                    r#"allow None None Some("{\"n\":1}")"#,
                ),
                (
                    r#"{"decision":"allow","metadata":[1]}"#,
                    "allow None None None",
                ),
            ],
            |(printed, expected)| {
                let Answer {
                    effect,
                    reason,
                    modified,
                    metadata,
                } = read_printed(printed.as_bytes()).unwrap();
                let modified = modified.as_ref().map(|modified| modified.get());
                let metadata = metadata.as_ref().map(|metadata| metadata.get());
                let effect = effect.as_str();
                let found = format!("{effect} {reason:?} {modified:?} {metadata:?}");
                assert_eq!(found, expected);
            },
        );
    }

    #[test]
    fn anything_else_is_no_answer() {
        let deep = format!(
            "{{\"decision\":\"allow\",\"x\":{}{}}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        each_row(
            [
                "",
                " \n",
                "allow",
                "\"allow\"",
                "null",
                "{}",
                r#"["allow", null, null]"#,
                r#"{"decision": null}"#,
                r#"{"decision": true}"#,
                r#"{"decision": ["allow"]}"#,
                r#"{"decision": "Allow"}"#,
                r#"{"decision": "allow "}"#,
                r#"{"Decision": "allow"}"#,
                r#"{"decision": "allow"} {"decision": "allow"}"#,
                r#"{"decision": "allow"},"#,
                r#"{"decision": "deny_continue", "decision": "allow"}"#,
                r#"{"decision": "allow", "reason": 1}"#,
                r#"{"decision": "allow", "reason": "a", "rationale": "b"}"#,
                r#"{"decision": "allow", "x": {"a": 1, "a": 2}}"#,
                r#"{"decision": "redact"}"#,
                r#"{"decision": "redact", "modified": null}"#,
                r#"{"decision": "redact", "modified": "x"}"#,
                r#"{"decision": "allow", "x": NaN}"#,
                "\u{feff}{\"decision\": \"allow\"}",
                &deep,
            ],
            |printed| assert!(read_printed(printed.as_bytes()).is_err(), "{printed}"),
        );
        assert!(read_printed(b"{\"decision\": \"allow\", \"x\": \"\xff\"}").is_err());
    }
}
