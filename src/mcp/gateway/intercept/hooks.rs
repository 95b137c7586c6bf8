//! The events of Claude Code's hooks.

use addons::contract::Denial;
use addons::json::ObjectText;
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::{Claims, quote};
use super::Known;
use super::asked::{Asked, id, invalid, members, raw};
use super::reply::Dialect;

const KEYS: [&str; 6] = [
    "hook_event_name",
    "tool_name",
    "tool_input",
    "tool_response",
    "tool_use_id",
    "session_id",
];

/// Reads an event, and sets the dialect of its answer as soon as the event is known.
pub fn read(text: &RawValue, known: &mut Known) -> Result<Asked, Denial> {
    let all = members(text.get(), &KEYS)?;
    let event = all.text("hook_event_name").unwrap_or_default();
    (known.dialect, known.kind) = match &*event {
        "PreToolUse" => (Dialect::PreToolUse, "before"),
        "PostToolUse" => (Dialect::PostToolUse, "after"),
        _ => return Err(invalid("only PreToolUse and PostToolUse are answered here")),
    };
    let name = id(&all, "tool_name")?.ok_or_else(|| invalid("`tool_name` is missing"))?;
    let claims = Claims {
        request_id: id(&all, "tool_use_id")?,
        session: id(&all, "session_id")?,
        ..Claims::default()
    };
    if known.dialect == Dialect::PostToolUse {
        let result = all
            .get("tool_response")
            .ok_or_else(|| invalid("`tool_response` is missing"))?;
        return Ok(Asked::After {
            claims,
            tool: Some(Tool::OfClaudeCode(name)),
            outcome: Ok(raw(result)?),
        });
    }
    let input = all.get("tool_input").filter(|json| json.starts_with('{'));
    let input = input.ok_or_else(|| invalid("`tool_input` is not an object"))?;
    let mut params = ObjectText::default();
    params.member("name", &quote(&name));
    params.member("arguments", input);
    Ok(Asked::Before {
        claims,
        method: "tools/call".into(),
        tool: Some(Tool::OfClaudeCode(name)),
        params: Some(raw(&params.end())?),
    })
}
