//! The dialect of Docker's MCP Gateway, which is written in Go.

use addons::contract::Denial;
use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;

use super::super::super::contexts::Tool;
use super::super::super::core::{Claims, quote};
use super::asked::{Asked, invalid, members, raw};
use super::own_denials::OwnDenials;
use super::reply::{BLOCK_CODE, CODE_KEY};

/// The tool that calls another tool, which its arguments name.
const EXEC: &str = "mcp-exec";
/// The keys of a request: of older versions, and of later ones.
const KEYS: [&str; 5] = ["Session", "Params", "Extra", "method", "params"];
/// The keys of the params of a call.
const CALL: [&str; 3] = ["name", "arguments", "_meta"];
const TOOLS_CALL: &str = "tools/call";

/// Reads a request, or the bare result of a call.
pub fn read(text: &RawValue, is_response: bool, own: &OwnDenials) -> Result<Asked, Denial> {
    if is_response {
        return after(text, own);
    }
    let all = members(text.get(), &KEYS)?;
    let (old, new) = (all.get("Params"), all.get("params"));
    if old.is_some() && new.is_some() {
        return Err(invalid(
            "has both `Params` and `params`, which Go reads as one key",
        ));
    }
    let method = match all.get("method") {
        Some(_) => all
            .text("method")
            .ok_or_else(|| invalid("`method` is not a text"))?,
        None => TOOLS_CALL.into(),
    };
    let params = old.or(new);
    if &*method != TOOLS_CALL {
        return Ok(Asked::Before {
            claims: Claims::default(),
            method: (&*method).into(),
            tool: None,
            params: params.filter(|json| *json != "null").map(raw).transpose()?,
        });
    }
    let params = params.ok_or_else(|| invalid("has neither `Params` nor `params`"))?;
    let (tool, params) = called(params)?;
    Ok(Asked::Before {
        claims: Claims::default(),
        method: TOOLS_CALL.into(),
        tool: Some(tool),
        params: Some(params),
    })
}

/// The tool and the params of a call: for `mcp-exec`, those of the tool that it calls.
pub fn called(params: &str) -> Result<(Tool, Box<RawValue>), Denial> {
    let all = members(params, &CALL)?;
    let name = all
        .text("name")
        .ok_or_else(|| invalid("`name` is not a text"))?;
    let arguments = object_or_nothing(&all)?;
    if &*name != EXEC {
        return Ok((Tool::Named((&*name).into()), raw(params)?));
    }
    let inner = members(arguments, &CALL)?;
    let name = inner
        .text("name")
        .ok_or_else(|| invalid("mcp-exec names no tool"))?;
    if name.eq_ignore_ascii_case(EXEC) {
        return Err(invalid("mcp-exec calls itself"));
    }
    // A text is parsed again by the gateway.
    let written = inner.get("arguments").filter(|json| json.starts_with('"'));
    let arguments = match written {
        Some(_) => {
            let text = inner.text("arguments").unwrap_or_default();
            let checked = addons::json::strict::check_at_most(usize::MAX, text.as_bytes());
            let checked = checked.map_err(|error| invalid(&error.to_string()))?;
            let object = checked.trim_ascii();
            if !object.starts_with('{') {
                return Err(invalid("the arguments of mcp-exec are not an object"));
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
    Ok((Tool::Named((&*name).into()), raw(&params.end())?))
}

/// The arguments as JSON text; an empty object if there are none.
fn object_or_nothing<'a>(params: &Members<'a>) -> Result<&'a str, Denial> {
    match params.get("arguments").filter(|json| *json != "null") {
        None => Ok("{}"),
        Some(object) if object.starts_with('{') => Ok(object),
        Some(_) => Err(invalid("`arguments` is not an object")),
    }
}

fn after(text: &RawValue, own: &OwnDenials) -> Result<Asked, Denial> {
    if text.get() == "null" {
        return Ok(Asked::Nothing);
    }
    let result = members(
        text.get(),
        &["content", "isError", "structuredContent", "_meta"],
    )?;
    if own_denial(&result).is_some_and(|reason| own.has(&reason)) {
        return Ok(Asked::Nothing);
    }
    Ok(Asked::After {
        claims: Claims::default(),
        tool: None,
        outcome: Ok(text.to_owned()),
    })
}

/// The text of a result that has the members of a block and no others.
fn own_denial(result: &Members<'_>) -> Option<String> {
    let is_ours = |key: &str| ["action", "reason", "content", "isError", "_meta"].contains(&key);
    let code = BLOCK_CODE.to_string();
    let meta = result.members("_meta").ok()??;
    let mut content = result.elements("content").into_iter();
    let (only, None) = (content.next()?, content.next()) else {
        return None;
    };
    let only = Members::parse(only).ok()?;
    let is_block = result.iter().all(|(key, _)| is_ours(key))
        && result.get("isError") == Some("true")
        && meta
            .iter()
            .all(|(key, value)| key == CODE_KEY && value == code)
        && meta.get(CODE_KEY).is_some()
        && only.iter().all(|(key, _)| key == "type" || key == "text")
        && only.text("type").as_deref() == Some("text");
    let text = only.text("text").filter(|_| is_block)?.into_owned();
    let is_same = |key: &str, expected: &str| {
        result.get(key).is_none() || result.text(key).as_deref() == Some(expected)
    };
    (is_same("action", "block") && is_same("reason", &text)).then_some(text)
}
