//! Reads arguments and writes results of the policy servers.

use addons::contract::RpcError;
use addons::json::Members;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::mcp::error::{INVALID_PARAMS, SERVER_ERROR, protocol_error, raw};
use crate::mcp::message::Outcome;

/// Error code for an unknown resource, up to the revision 2025-11-25.
const RESOURCE_NOT_FOUND: i64 = -32002;

/// The arguments of a call; refuses other members than `known`, since a person or an agent that
/// sends them expects an effect.
pub fn members_of<'a>(
    arguments: Option<&'a RawValue>,
    known: &[&str],
) -> Result<Members<'a>, RpcError> {
    let arguments = arguments.filter(|arguments| arguments.get().trim() != "null");
    let members = arguments.map(Members::read).transpose();
    let members = members.map_err(|_| invalid("arguments is not an object".to_owned()))?;
    let members = members.unwrap_or_default();
    if let Some((unknown, _)) = members.iter().find(|(key, _)| !known.contains(key)) {
        let unknown: String = unknown.chars().take(64).collect();
        return Err(invalid(format!("unknown argument {unknown:?}")));
    }
    Ok(members)
}

/// An argument that is a text.
pub fn text_argument(members: &Members<'_>, name: &str) -> Result<String, RpcError> {
    let text = members.text(name);
    let text = text.ok_or_else(|| invalid(format!("{name} must be a string")))?;
    Ok(text.into_owned())
}

fn invalid(why: String) -> RpcError {
    protocol_error(INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// A result with an object, and the same as text.
pub fn structured(object: &Value) -> Outcome {
    written(&json!({
        "content": [{ "type": "text", "text": object.to_string() }],
        "structuredContent": object,
    }))
}

/// The result of a tool that failed: the model reads why.
pub fn failed(why: &str) -> Outcome {
    written(&json!({ "content": [{ "type": "text", "text": why }], "isError": true }))
}

/// The content of a resource.
pub fn contents(uri: &str, mime_type: &str, text: &str) -> Outcome {
    let content = json!({ "uri": uri, "mimeType": mime_type, "text": text });
    written(&json!({ "contents": [content] }))
}

/// The error for an unknown resource, in the legacy era.
pub fn resource_not_found(uri: &str) -> RpcError {
    RpcError {
        data: raw(json!({ "uri": uri })),
        ..protocol_error(RESOURCE_NOT_FOUND, "Resource not found")
    }
}

fn written(result: &Value) -> Outcome {
    to_raw_value(result).map_err(|_| protocol_error(SERVER_ERROR, "Internal error"))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn arguments_are_an_object_with_known_members_of_the_right_type() {
        each_row(
            [
                (r#"{"source":"a"}"#, true),
                (r#"{"source":"\u0061"}"#, true),
                (r#"{"source":""}"#, true),
                ("null", false),
                ("{}", false),
                (r#"{"source":1}"#, false),
                (r#"{"source":null}"#, false),
                (r#"{"source":["a"]}"#, false),
                (r#"{"Source":"a"}"#, false),
                (r#"{"source":"a","id":"b"}"#, false),
                (r#"{"source":"a","source":"b"}"#, false),
                ("[]", false),
                ("\"source\"", false),
            ],
            |(text, is_read)| {
                let arguments = RawValue::from_string(text.to_owned()).unwrap();
                let members = members_of(Some(&arguments), &["source"]);
                let source = members.and_then(|members| text_argument(&members, "source"));
                assert_eq!(source.is_ok(), is_read, "{text}");
            },
        );
    }
}
