//! The events of Claude Code's hooks.

use addons::contract::Denial;
use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::{After, Before, Claims, quote};
use super::asked::{Asked, Parsed, TOOLS_CALL, id, members, raw};
use super::reply::Dialect;

/// The key that every event has.
pub const EVENT: &str = "hook_event_name";
const KEYS: [&str; 6] = [
    EVENT,
    "tool_name",
    "tool_input",
    "tool_response",
    "tool_use_id",
    "session_id",
];

/// Reads an event.
pub fn read(text: &RawValue) -> Parsed {
    let unknown = |denial| Parsed {
        dialect: Dialect::PreToolUse,
        kind: "other",
        asked: Err(denial),
    };
    let all = match members(text.get(), &KEYS) {
        Ok(all) => all,
        Err(denial) => return unknown(denial),
    };
    match all.text(EVENT).as_deref() {
        Some("PreToolUse") => Parsed {
            dialect: Dialect::PreToolUse,
            kind: "before",
            asked: before(&all),
        },
        Some("PostToolUse") => Parsed {
            dialect: Dialect::PostToolUse,
            kind: "after",
            asked: after(&all),
        },
        _ => {
            let what = "only PreToolUse and PostToolUse are answered here";
            unknown(Denial::malformed(what))
        }
    }
}

fn before(all: &Members<'_>) -> Result<Asked, Denial> {
    let (claims, name) = claims(all)?;
    let params = params(all, &name)?;
    let params = params.ok_or_else(|| Denial::malformed("`tool_input` is not an object"))?;
    let before = Before {
        claims,
        method: TOOLS_CALL.into(),
        tool: Some(Tool::OfClaudeCode(name)),
        params: Some(params),
    };
    Ok(Asked::Before {
        before,
        is_nested: false,
    })
}

fn after(all: &Members<'_>) -> Result<Asked, Denial> {
    let (claims, name) = claims(all)?;
    let result = all
        .get("tool_response")
        .ok_or_else(|| Denial::malformed("`tool_response` is missing"))?;
    Ok(Asked::After(After {
        claims,
        params: params(all, &name)?,
        tool: Some(Tool::OfClaudeCode(name)),
        outcome: Some(Ok(raw(result)?)),
    }))
}

fn claims(all: &Members<'_>) -> Result<(Claims, Box<str>), Denial> {
    let name = id(all, "tool_name")?.ok_or_else(|| Denial::malformed("`tool_name` is missing"))?;
    let claims = Claims {
        request_id: id(all, "tool_use_id")?,
        session: id(all, "session_id")?,
        ..Claims::default()
    };
    Ok((claims, name))
}

/// The params of a call with this input; `None` if the input is not an object.
fn params(all: &Members<'_>, name: &str) -> Result<Option<Box<RawValue>>, Denial> {
    let input = all.get("tool_input").filter(|json| json.starts_with('{'));
    let Some(input) = input else { return Ok(None) };
    let mut params = ObjectText::default();
    params.member("name", &quote(name));
    params.member("arguments", input);
    raw(&params.end()).map(Some)
}
