//! Prepares the params of a tool call for the server.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::denials::Target;
use super::settings::OverrideRule;
use crate::contract::{Container, Definition, Denial};
use crate::json::{Members, Node, RawJsonError, canonical, sha256_hex};

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
            rule.apply(&mut arguments, tool.get("inputSchema"))?;
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
