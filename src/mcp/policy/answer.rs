//! The answer of a policy.

use addons::contract::Effect;
use regorus::Value;
use serde_json::value::RawValue;

use super::error::EvaluationError;

/// A longer reason is cut: it goes to the agent and the audit log.
const MAX_REASON_BYTES: usize = 1024;
/// Reason of an undefined decision.
const UNDEFINED: &str = "the policy is undefined for this input";

/// A decision and its reason.
#[derive(Debug)]
pub struct Answer {
    /// What to do.
    pub effect: Effect,
    /// Why, as the policy says.
    pub reason: Option<String>,
}

/// Reads the value of the collecting rule: a list with one object, or lists of `decision`, `reason`
/// and `modified`; each list is empty where the value is undefined.
pub fn read(value: &Value) -> Result<Answer, EvaluationError> {
    let parts: Vec<Option<Value>> = match value {
        Value::Array(lists) => lists.iter().map(first).collect(),
        _ => return Err(wrong("the policy has no answer")),
    };
    match <[Option<Value>; 3]>::try_from(parts) {
        Ok([decision, reason, modified]) => of(decision, reason, modified),
        Err(parts) => match parts.into_iter().next().flatten() {
            None => of(None, None, None),
            Some(object @ Value::Object(_)) => {
                let member = |name: &str| match &object[name] {
                    Value::Undefined => None,
                    value => Some(value.clone()),
                };
                of(member("decision"), member("reason"), member("modified"))
            }
            Some(_) => Err(wrong("the entrypoint's value is not an object")),
        },
    }
}

fn of(
    decision: Option<Value>,
    reason: Option<Value>,
    modified: Option<Value>,
) -> Result<Answer, EvaluationError> {
    let decision = match decision {
        None => {
            return Ok(Answer {
                effect: Effect::DenyContinue,
                reason: Some(UNDEFINED.to_owned()),
            });
        }
        Some(Value::String(word)) => word,
        Some(_) => return Err(wrong("`decision` is not a string")),
    };
    let reason = match reason {
        None => None,
        Some(Value::String(text)) => Some(shortened(&text)),
        Some(_) => return Err(wrong("`reason` is not a string")),
    };
    let effect = match &*decision {
        "allow" => Effect::Allow,
        "deny_continue" => Effect::DenyContinue,
        "deny_abort" => Effect::DenyAbort,
        "ask" => Effect::Ask,
        "redact" => Effect::Redact(replacement(modified)?),
        word => {
            let word = shortened(word);
            return Err(EvaluationError::Answer(format!(
                "{word:?} is not a decision: allow, deny_continue, deny_abort, ask or redact"
            )));
        }
    };
    Ok(Answer { effect, reason })
}

/// The replacement of the arguments or the result.
fn replacement(modified: Option<Value>) -> Result<Box<RawValue>, EvaluationError> {
    match modified {
        Some(object @ Value::Object(_)) => serde_json::value::to_raw_value(&object)
            .map_err(|error| EvaluationError::Answer(error.to_string())),
        Some(_) => Err(wrong("`modified` is not an object")),
        None => Err(wrong("the decision is redact, and `modified` is undefined")),
    }
}

fn first(list: &Value) -> Option<Value> {
    match list {
        // The virtual machine has a list of `undefined` where the interpreter has an empty one.
        Value::Array(items) => {
            let defined = |value: &&Value| **value != Value::Undefined;
            items.iter().find(defined).cloned()
        }
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default().to_owned()
}

fn wrong(message: &str) -> EvaluationError {
    EvaluationError::Answer(message.to_owned())
}
