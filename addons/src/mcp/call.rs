//! Prepares the params of a tool call for the server.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::arguments::Defaults;
use super::denials::Target;
use super::settings::OverrideRule;
use crate::contract::{Container, Definition, Denial};
use crate::json::{Members, Node, ObjectText, RawJsonError, canonical, sha256_hex};

/// The longest params that are read on the connection's thread, in bytes. Reading them takes less
/// than 1 ms. Longer params are read on a blocking thread.
pub(super) const READ_IN_PLACE: usize = 64 * 1024;

/// The members of a call's params that the chain or the gateway reads.
const READ: [&str; 6] = [
    "name",
    "arguments",
    "_meta",
    "task",
    "inputResponses",
    "requestState",
];

/// The members of a call's params that a person who decides about it is not shown: the question has
/// the name, and the gateway writes or removes the others.
const NOT_SHOWN: [&str; 3] = ["name", "_meta", "task"];

/// The longest member of a trace context, as JSON. W3C asks for 512 characters of `tracestate`.
const MAX_TRACE: usize = 514;

/// The keys of `_meta` that the gateway writes, and those of trace contexts.
const KNOWN_META: [&str; 7] = [
    "progressToken",
    "traceparent",
    "tracestate",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

/// A tool call that is being judged.
pub(super) struct ToolCall<'c> {
    pub(super) container: &'c Arc<Container>,
    pub(super) target: Target,
    pub(super) definition: Arc<Definition>,
    pub(super) rule: Option<Arc<OverrideRule>>,
}

/// A tool call that is ready to be sent.
#[derive(Debug)]
pub(super) struct PreparedCall {
    /// The params for the server: hidden fields are removed, and defaults are added.
    pub(super) params: Box<RawValue>,
    /// The params as the caller wrote them, if `params` differs.
    pub(super) replaced: Option<Box<RawValue>>,
    /// The SHA-256 of the caller's arguments in their canonical form.
    pub(super) args_sha256: String,
}

/// Reads the arguments of a call and applies the override. Denies params that are malformed, whose
/// `name` is not the tool's name in `definition`, or with another spelling of a key in [`READ`].
pub(super) fn prepare(
    params: Option<Box<RawValue>>,
    definition: &Definition,
    rule: Option<&Arc<OverrideRule>>,
) -> Result<PreparedCall, Denial> {
    let params = params.ok_or_else(|| Denial::malformed("a tool call has no params"))?;
    let members = Members::read(&params).map_err(unreadable)?;
    if members.text("name").as_deref() != Some(&*definition.name) {
        return Err(Denial::malformed(
            "`name` in the params is not the name of the called tool",
        ));
    }
    if let Some(key) = members.other_spelling(&READ) {
        let why = "a server that ignores case would confuse it with another key";
        return Err(Denial::malformed(format_args!("{key:?}: {why}")));
    }
    let mut arguments = Node::parse(arguments(&members)).map_err(unreadable)?;
    if !matches!(arguments, Node::Object(_)) {
        return Err(Denial::malformed("the arguments are not an object"));
    }
    let args_sha256 = sha256_hex(&canonical(&arguments));
    let sent = match rule.filter(|rule| !rule.leaves_arguments()) {
        None => None,
        Some(rule) => {
            let tool = Members::read(&definition.raw).map_err(unreadable)?;
            rule.apply(&mut arguments, tool.get("inputSchema"), Defaults::Sent)?;
            Some(with_arguments(&members, &arguments.to_json())?)
        }
    };
    let (params, replaced) = match sent {
        Some(sent) => (sent, Some(params)),
        None => (params, None),
    };
    Ok(PreparedCall {
        params,
        replaced,
        args_sha256,
    })
}

/// What a person sees of a call.
pub(super) struct Shown {
    /// The arguments as the server gets them. If the params have other members that the server
    /// gets, such as the answers in a retry, an object of the arguments and these members.
    pub(super) text: Box<RawValue>,
    /// Whether there are such members.
    pub(super) has_more: bool,
}

/// Prepares what a person sees of a call: `redacted` are the arguments that a policy set, and
/// `params` the params as the caller wrote them. With `continues`, the caller's answers belong to a
/// call that was approved, and are left out.
pub(super) fn shown(
    params: &RawValue,
    redacted: Option<&RawValue>,
    definition: &Definition,
    rule: Option<&OverrideRule>,
    continues: bool,
) -> Result<Shown, Denial> {
    let members = Members::read(params).map_err(unreadable)?;
    let given = redacted.map_or_else(|| arguments(&members), RawValue::get);
    let arguments = match rule.filter(|rule| !rule.leaves_arguments()) {
        None => given.to_owned(),
        Some(rule) => {
            let mut arguments = Node::parse(given).map_err(unreadable)?;
            let tool = Members::read(&definition.raw).map_err(unreadable)?;
            rule.apply(&mut arguments, tool.get("inputSchema"), Defaults::Written)?;
            arguments.to_json()
        }
    };
    let more = members.iter().filter(|(key, _)| !NOT_SHOWN.contains(key));
    let is_shown = |key: &str| key != "arguments" && !(continues && key == "inputResponses");
    let more: Vec<_> = more.filter(|(key, _)| is_shown(key)).collect();
    if more.is_empty() {
        let text = raw(arguments)?;
        return Ok(Shown {
            text,
            has_more: false,
        });
    }
    let mut all = ObjectText::default();
    all.member("arguments", &arguments);
    for (key, value) in more {
        all.member(key, value);
    }
    Ok(Shown {
        text: raw(all.end())?,
        has_more: true,
    })
}

/// The arguments that a policy set, without the fields that an override hides or sets: these may be
/// secrets, and the caller's gateway does not need them.
pub(super) fn without_set_fields(
    arguments: &RawValue,
    definition: &Definition,
    rule: Option<&OverrideRule>,
) -> Result<Box<RawValue>, Denial> {
    let Some(rule) = rule.filter(|rule| !rule.leaves_arguments()) else {
        return Ok(arguments.to_owned());
    };
    let mut arguments = Node::parse(arguments.get()).map_err(unreadable)?;
    let tool = Members::read(&definition.raw).map_err(unreadable)?;
    rule.apply(&mut arguments, tool.get("inputSchema"), Defaults::LeftOut)?;
    raw(arguments.to_json())
}

/// The params of a call without the keys of `_meta` that a person was not shown.
pub(super) fn without_unknown_meta(params: &RawValue) -> Result<Box<RawValue>, Denial> {
    let members = Members::read(params).map_err(unreadable)?;
    let Some(meta) = members.members("_meta").map_err(unreadable)? else {
        return Ok(params.to_owned());
    };
    let mut kept = ObjectText::default();
    for (key, value) in meta.iter().filter(|(key, _)| KNOWN_META.contains(key)) {
        let is_trace = matches!(key, "traceparent" | "tracestate");
        if !is_trace || (value.starts_with('"') && value.len() <= MAX_TRACE) {
            kept.member(key, value);
        }
    }
    raw(members.with("_meta", &kept.end()))
}

/// The arguments as JSON text; missing arguments and `null` count as an empty object.
pub(super) fn arguments<'a>(params: &Members<'a>) -> &'a str {
    let given = params.get("arguments").filter(|json| *json != "null");
    given.unwrap_or("{}")
}

pub(super) fn with_arguments(
    params: &Members<'_>,
    arguments: &str,
) -> Result<Box<RawValue>, Denial> {
    raw(params.with("arguments", arguments))
}

/// Converts JSON text to a [`RawValue`]. Denies the message if the text is not JSON.
pub(super) fn raw(json: String) -> Result<Box<RawValue>, Denial> {
    RawValue::from_string(json).map_err(Denial::malformed)
}

fn unreadable(error: RawJsonError) -> Denial {
    Denial::malformed(format!("the params of a tool call cannot be read: {error}"))
}
