//! The structured dialect: an envelope around a request or a response.

use addons::contract::{Denial, RpcError};
use addons::json::Members;
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::Claims;
use super::asked::{Asked, id, invalid, members, raw};
use super::docker::called;

/// The keys that make a body structured. No other dialect has them at the top.
const MARKS: [&str; 5] = ["version", "type", "request_id", "tool_id", "agent_id"];
const KEYS: [&str; 11] = [
    "version",
    "type",
    "request_id",
    "timestamp",
    "method",
    "params",
    "tool_id",
    "agent_id",
    "session_id",
    "result",
    "error",
];
const TOOLS_CALL: &str = "tools/call";

/// Whether a body is in this dialect. A result may have any members, but always has `content`.
pub fn is_structured(text: &RawValue, is_response: bool) -> Result<bool, Denial> {
    let text = text.get();
    if is_response && text == "null" {
        return Ok(false);
    }
    let all = members(text, &MARKS)?;
    let is_result = is_response && all.get("content").is_some();
    Ok(!is_result && MARKS.iter().any(|key| all.get(key).is_some()))
}

pub fn read(text: &RawValue, is_response: bool) -> Result<Asked, Denial> {
    let all = members(text.get(), &KEYS)?;
    let word = if is_response { "after" } else { "before" };
    let is_type = all.get("type").is_none() || all.text("type").as_deref() == Some(word);
    if !is_type {
        return Err(invalid(&format!("`type` is not {word:?}")));
    }
    let has = |key: &str| all.get(key).is_some_and(|json| json != "null");
    if !is_response && (has("result") || has("error")) {
        return Err(invalid("has `result` or `error` before the call"));
    }
    let claims = Claims {
        request_id: id(&all, "request_id")?,
        tool_id: id(&all, "tool_id")?,
        agent_id: id(&all, "agent_id")?,
        session: id(&all, "session_id")?,
        traceparent: None,
    };
    match is_response {
        true => after(&all, claims),
        false => before(&all, claims),
    }
}

fn before(all: &Members<'_>, claims: Claims) -> Result<Asked, Denial> {
    let method = match all.get("method") {
        Some(_) => all
            .text("method")
            .ok_or_else(|| invalid("`method` is not a text"))?,
        None => TOOLS_CALL.into(),
    };
    let params = all.get("params").filter(|json| *json != "null");
    if &*method != TOOLS_CALL {
        return Ok(Asked::Before {
            claims,
            method: (&*method).into(),
            tool: None,
            params: params.map(raw).transpose()?,
        });
    }
    let params = params.ok_or_else(|| invalid("`params` is missing"))?;
    let (tool, params) = called(params)?;
    check_tool_id(&claims, &tool)?;
    Ok(Asked::Before {
        claims,
        method: TOOLS_CALL.into(),
        tool: Some(tool),
        params: Some(params),
    })
}

/// Refuses a `tool_id` that names another tool than the params: policies may read either.
fn check_tool_id(claims: &Claims, tool: &Tool) -> Result<(), Denial> {
    let Some(tool_id) = claims.tool_id.as_deref() else {
        return Ok(());
    };
    let name = tool.name();
    let is_same = tool_id == name
        || tool_id
            .strip_suffix(name)
            .is_some_and(|rest| rest.ends_with(['_', ':', '/', '.']))
        || name
            .strip_prefix(tool_id)
            .is_some_and(|rest| rest.starts_with(['_', ':', '/', '.']));
    match is_same {
        true => Ok(()),
        false => Err(invalid(
            "`tool_id` and the name in `params` are different tools",
        )),
    }
}

fn after(all: &Members<'_>, claims: Claims) -> Result<Asked, Denial> {
    let result = all.get("result");
    let error = all.get("error").filter(|json| *json != "null");
    let outcome = match (result, error) {
        (Some(result), None) => Ok(raw(result)?),
        (None | Some("null"), Some(error)) => {
            let error: RpcError = serde_json::from_str(error)
                .map_err(|_| invalid("`error` has no code and message"))?;
            Err(error)
        }
        _ => return Err(invalid("needs exactly one of `result` and `error`")),
    };
    let tool = claims.tool_id.clone().map(Tool::Named);
    Ok(Asked::After {
        claims,
        tool,
        outcome,
    })
}
