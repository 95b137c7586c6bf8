//! The answer of a policy.

use addons::contract::Effect;
use regorus::Value;
use serde_json::value::RawValue;

use super::error::EvaluationError;

/// The names of the values that make up an answer. If the entrypoint is a package, its rules have
/// these names. If the entrypoint is a rule, the members of its object have them.
pub const MEMBERS: [&str; 4] = ["decision", "reason", "modified", "metadata"];
/// Limit on the length of a reason, and of an unknown decision in an error, in bytes. Longer text
/// is truncated, since it is sent to the agent and written to the audit log.
const MAX_REASON_BYTES: usize = 1024;
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
/// either one list with the entrypoint's object, or a list for each of [`MEMBERS`]. An inner list is empty if its value is undefined. An undefined decision is
/// [`Effect::DenyContinue`].
pub fn read(value: &Value) -> Result<Answer, EvaluationError> {
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

fn of_members(
    [decision, reason, modified, metadata]: [Value; 4],
) -> Result<Answer, EvaluationError> {
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
    let effect = Effect::named(&decision).ok_or_else(|| {
        let word = shortened(&decision);
        EvaluationError::Answer(format!(
            "{word:?} is not a decision; the decisions are allow, deny_continue, deny_abort, ask and redact"
        ))
    })?;
    let modified = match effect {
        Effect::Redact => Some(replacement(modified)?),
        _ => None,
    };
    Ok(Answer {
        effect,
        reason,
        modified,
        metadata: Some(metadata)
            .filter(|metadata| matches!(metadata, Value::Object(_)))
            .and_then(|metadata| serde_json::value::to_raw_value(&metadata).ok())
            .filter(|metadata| metadata.get().len() <= MAX_METADATA_BYTES),
    })
}

/// Converts `modified` to the JSON that replaces the message's arguments, params, result or error.
fn replacement(modified: Value) -> Result<Box<RawValue>, EvaluationError> {
    match modified {
        object @ Value::Object(_) => serde_json::value::to_raw_value(&object)
            .map_err(|error| EvaluationError::Answer(error.to_string())),
        Value::Undefined => Err(wrong("the decision is redact, and `modified` is undefined")),
        _ => Err(wrong("`modified` is not an object")),
    }
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_REASON_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

fn wrong(message: &str) -> EvaluationError {
    EvaluationError::Answer(message.to_owned())
}
