//! The dialect of Docker's MCP Gateway, which is written in Go.

use addons::contract::Denial;
use addons::json::strict::{StrictJsonError, check_at_most};
use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::{After, Before, Claims, EXEC, quote};
use super::super::super::message::MessageError;
use super::super::unreadable;
use super::asked::{Asked, TOOLS_CALL, members, raw};
use super::own_denials::OwnDenials;

/// The keys of a request: of older versions, and of later ones.
const KEYS: [&str; 5] = ["Session", "Params", "Extra", "method", "params"];
/// The keys of the params of a call.
const CALL: [&str; 3] = ["name", "arguments", "_meta"];
/// The keys of a result.
const RESULT: [&str; 4] = ["content", "isError", "structuredContent", "_meta"];

/// Reads a request: `Params`, or `params` with or without the method of a call, and nothing in between.
/// The gateway asks about calls of tools alone.
pub fn before(text: &RawValue, values: usize) -> Result<Asked, Denial> {
    let all = members(text.get(), &KEYS)?;
    let is_call = || all.text("method").as_deref() == Some(TOOLS_CALL);
    let params = match (all.get("Params"), all.get("method"), all.get("params")) {
        (Some(params), None, None) | (None, None, Some(params)) => params,
        (None, Some(_), Some(params)) if is_call() => params,
        _ => {
            return Err(Denial::malformed(
                "has neither `Params` alone nor `params`, whose method can only be tools/call",
            ));
        }
    };
    let (tool, params, is_nested) = called(params, values)?;
    let before = Before {
        claims: Claims::default(),
        method: TOOLS_CALL.into(),
        tool: Some(tool),
        params: Some(params),
    };
    Ok(Asked::Before { before, is_nested })
}

/// The tool and the params of a call: for [`EXEC`], those of the tool that it calls, with `true`. A
/// text in its arguments may have `values` values.
pub fn called(params: &str, values: usize) -> Result<(Tool, Box<RawValue>, bool), Denial> {
    let all = members(params, &CALL)?;
    let name = all
        .text("name")
        .ok_or_else(|| Denial::malformed("`name` is not a text"))?;
    let arguments = object_or_nothing(&all)?;
    if &*name != EXEC {
        return Ok((Tool::Named((&*name).into()), raw(params)?, false));
    }
    let inner = members(arguments, &CALL)?;
    let name = inner
        .text("name")
        .ok_or_else(|| Denial::malformed("mcp-exec names no tool"))?;
    if name.eq_ignore_ascii_case(EXEC) {
        return Err(Denial::malformed("mcp-exec calls itself"));
    }
    // A text is parsed again by the gateway.
    let written = inner.get("arguments").filter(|json| json.starts_with('"'));
    let arguments = match written {
        Some(_) => {
            let text = inner.text("arguments").unwrap_or_default();
            let checked = check_at_most(values, text.as_bytes());
            let checked =
                checked.map_err(|error: StrictJsonError| unreadable(MessageError::Json(error)))?;
            let object = checked.trim_ascii();
            if !object.starts_with('{') {
                return Err(Denial::malformed(
                    "the arguments of mcp-exec are not an object",
                ));
            }
            object.to_owned()
        }
        None => object_or_nothing(&inner)?.to_owned(),
    };
    let mut params = ObjectText::default();
    params.member("name", &quote(&name));
    params.member("arguments", &arguments);
    if let Some(meta) = all.get("_meta").filter(|json| *json != "null") {
        params.member("_meta", meta);
    }
    Ok((Tool::Named((&*name).into()), raw(&params.end())?, true))
}

/// The arguments as JSON text; an empty object if there are none.
fn object_or_nothing<'a>(params: &Members<'a>) -> Result<&'a str, Denial> {
    match params.get("arguments").filter(|json| *json != "null") {
        None => Ok("{}"),
        Some(object) if object.starts_with('{') => Ok(object),
        Some(_) => Err(Denial::malformed("`arguments` is not an object")),
    }
}

/// Reads the bare result of a call, or `null` for a call that failed. A result always has `content`.
pub fn after(text: &RawValue, own: &OwnDenials) -> Result<Asked, Denial> {
    let outcome = match text.get() {
        "null" => None,
        result if members(result, &RESULT)?.get("content").is_none() => {
            return Err(Denial::malformed("the result has no `content`"));
        }
        _ if own.has_result(text) => None,
        _ => Some(Ok(text.to_owned())),
    };
    Ok(Asked::After(After {
        claims: Claims::default(),
        tool: None,
        params: None,
        outcome,
    }))
}
