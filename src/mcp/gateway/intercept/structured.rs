//! The structured dialect: an envelope around a request or a response.

use addons::contract::{Denial, RpcError};
use addons::json::Members;
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::{After, Before, Claims, EXEC};
use super::asked::{Asked, TOOLS_CALL, id, members, raw};
use super::docker::called;
use super::own_denials::OwnDenials;

/// The other requests of MCP's clients.
const OTHER_METHODS: [&str; 13] = [
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    PROMPTS_GET,
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "tools/list",
];
const PROMPTS_GET: &str = "prompts/get";
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

/// Whether a body is in this dialect.
pub fn is_structured(text: &RawValue, is_response: bool) -> Result<bool, Denial> {
    let text = text.get();
    if is_response && text == "null" {
        return Ok(false);
    }
    let all = members(text, &MARKS)?;
    let is_structured = MARKS.iter().any(|key| all.get(key).is_some());
    if is_structured && all.get("content").is_some() {
        let what = "has both the members of a result and those of the structured form";
        return Err(Denial::malformed(what));
    }
    Ok(is_structured)
}

pub fn read(
    text: &RawValue,
    is_response: bool,
    own: &OwnDenials,
    values: usize,
) -> Result<Asked, Denial> {
    let all = members(text.get(), &KEYS)?;
    let word = if is_response { "after" } else { "before" };
    let is_type = all.get("type").is_none() || all.text("type").as_deref() == Some(word);
    if !is_type {
        return Err(Denial::malformed(format!("`type` is not {word:?}")));
    }
    let has = |key: &str| all.get(key).is_some_and(|json| json != "null");
    if !is_response && (has("result") || has("error")) {
        return Err(Denial::malformed("has `result` or `error` before the call"));
    }
    let claims = Claims {
        request_id: id(&all, "request_id")?,
        tool_id: id(&all, "tool_id")?,
        agent_id: id(&all, "agent_id")?,
        session: id(&all, "session_id")?,
        traceparent: None,
    };
    match is_response {
        true => after(&all, claims, own),
        false => before(&all, claims, values),
    }
}

fn before(all: &Members<'_>, claims: Claims, values: usize) -> Result<Asked, Denial> {
    let method = match all.get("method") {
        Some(_) => all
            .text("method")
            .ok_or_else(|| Denial::malformed("`method` is not a text"))?,
        None => TOOLS_CALL.into(),
    };
    let params = all.get("params").filter(|json| *json != "null");
    if &*method != TOOLS_CALL {
        check_other(&method, params, &claims)?;
        let before = Before {
            claims,
            method: (&*method).into(),
            tool: None,
            params: params.map(raw).transpose()?,
        };
        return Ok(Asked::Before {
            before,
            is_nested: false,
        });
    }
    let params = params.ok_or_else(|| Denial::malformed("`params` is missing"))?;
    let (tool, params, is_nested) = called(params, values)?;
    let tool_id = claims.tool_id.as_deref();
    let is_same = |id: &str| id == tool.name() || (is_nested && id == EXEC);
    if !tool_id.is_none_or(is_same) {
        // Policies may read either.
        let what = "`tool_id` and the name in `params` are different tools";
        return Err(Denial::malformed(what));
    }
    let before = Before {
        claims,
        method: TOOLS_CALL.into(),
        tool: Some(tool),
        params: Some(params),
    };
    Ok(Asked::Before { before, is_nested })
}

/// Refuses a request that a lenient reader could take for a call of a tool, and unknown methods.
fn check_other(method: &str, params: Option<&str>, claims: &Claims) -> Result<(), Denial> {
    if !OTHER_METHODS.contains(&method) {
        return Err(Denial::malformed("`method` is no request of an MCP client"));
    }
    let calls = |params: &str| {
        let members = Members::parse(params);
        members.is_ok_and(|all| all.get("name").is_some() && all.get("arguments").is_some())
    };
    if claims.tool_id.is_some() || (method != PROMPTS_GET && params.is_some_and(calls)) {
        let what = "names a tool, but `method` is not tools/call";
        return Err(Denial::malformed(what));
    }
    Ok(())
}

fn after(all: &Members<'_>, claims: Claims, own: &OwnDenials) -> Result<Asked, Denial> {
    let result = all.get("result");
    let error = all.get("error").filter(|json| *json != "null");
    let outcome = match (result, error) {
        (Some(result), None) => {
            let result = raw(result)?;
            (!own.has_result(&result)).then_some(Ok(result))
        }
        (None | Some("null"), Some(error)) => {
            let error: RpcError = serde_json::from_str(error)
                .map_err(|_| Denial::malformed("`error` has no code and message"))?;
            (!own.has_error(&error)).then_some(Err(error))
        }
        _ => {
            let what = "needs exactly one of `result` and `error`";
            return Err(Denial::malformed(what));
        }
    };
    let tool = claims.tool_id.clone().map(Tool::Named);
    if tool.is_none() && claims.request_id.is_none() {
        let what = "has neither `tool_id` nor `request_id`";
        return Err(Denial::malformed(what));
    }
    Ok(Asked::After(After {
        claims,
        tool,
        params: None,
        outcome,
    }))
}
