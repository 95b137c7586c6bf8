//! Questions, and the members of their bodies.

use addons::contract::Denial;
use addons::json::{Members, RawJsonError, same_name};
use serde_json::value::RawValue;

use super::super::super::core::{After, Before};
use super::reply::Dialect;

/// The method of tool calls.
pub const TOOLS_CALL: &str = "tools/call";
/// The longest id of a caller, in bytes.
const MAX_ID: usize = 256;

/// A question.
pub enum Asked {
    Before {
        before: Before,
        /// Whether the tool is called by another one, whose arguments name it.
        is_nested: bool,
    },
    After(After),
}

/// A body, as far as it could be read.
pub struct Parsed {
    pub dialect: Dialect,
    /// `before`, `after` or `other`, for the metrics.
    pub kind: &'static str,
    pub asked: Result<Asked, Denial>,
}

/// The members of an object. Refuses other spellings of these keys: Go reads keys without regard to
/// case, and takes the last of several.
pub fn members<'t>(text: &'t str, keys: &[&str]) -> Result<Members<'t>, Denial> {
    let members =
        Members::parse(text).map_err(|error: RawJsonError| Denial::malformed(error.to_string()))?;
    let is_other = |key: &&str| !keys.contains(key) && keys.iter().any(|name| same_name(key, name));
    let other = members.iter().map(|(key, _)| key).find(is_other);
    if let Some(key) = other {
        return Err(Denial::malformed(format!(
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
        _ => Err(Denial::malformed(format!(
            "`{key}` must be a text of at most {MAX_ID} bytes, and is {json:.32}"
        ))),
    }
}

/// JSON text as a value.
pub fn raw(json: &str) -> Result<Box<RawValue>, Denial> {
    RawValue::from_string(json.to_owned()).map_err(Denial::malformed)
}
