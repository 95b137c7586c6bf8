//! Questions, and the members of their bodies.

use std::sync::Arc;

use addons::contract::Denial;
use addons::json::{Members, RawJsonError, same_name};
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::Claims;
use super::super::super::message::Outcome;

/// The longest id of a caller, in bytes.
const MAX_ID: usize = 256;

/// A question.
pub enum Asked {
    /// There is nothing to judge: the call failed, or its result is a block of ours.
    Nothing,
    Before {
        claims: Claims,
        method: Arc<str>,
        tool: Option<Tool>,
        params: Option<Box<RawValue>>,
    },
    After {
        claims: Claims,
        tool: Option<Tool>,
        outcome: Outcome,
    },
}

pub fn invalid(what: &str) -> Denial {
    Denial::malformed(what)
}

/// The members of an object. Refuses other spellings of these keys: Go reads keys without regard to
/// case, and takes the last of several.
pub fn members<'t>(text: &'t str, keys: &[&str]) -> Result<Members<'t>, Denial> {
    let members =
        Members::parse(text).map_err(|error: RawJsonError| invalid(&error.to_string()))?;
    let is_other = |key: &&str| !keys.contains(key) && keys.iter().any(|name| same_name(key, name));
    let other = members.iter().map(|(key, _)| key).find(is_other);
    if let Some(key) = other {
        return Err(invalid(&format!(
            "{key:?}: a reader that ignores case would confuse it with another key"
        )));
    }
    Ok(members)
}

/// A member that is a short text, or absent. Refuses other values.
pub fn id(members: &Members<'_>, key: &str) -> Result<Option<Box<str>>, Denial> {
    let Some(json) = members.get(key).filter(|json| *json != "null") else {
        return Ok(None);
    };
    match members.text(key) {
        Some(text) if text.is_empty() => Ok(None),
        Some(text) if text.len() <= MAX_ID => Ok(Some((&*text).into())),
        _ => Err(invalid(&format!(
            "`{key}` must be a text of at most {MAX_ID} bytes, and is {json:.32}"
        ))),
    }
}

/// JSON text as a value.
pub fn raw(json: &str) -> Result<Box<RawValue>, Denial> {
    RawValue::from_string(json.to_owned()).map_err(Denial::malformed)
}
