//! Header fields that mirror a message, for intermediaries between the gateway and the server
//! (2026-07-28, basic/transports/streamable-http, "Request Metadata").

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::fields::{METHOD, NAME, PROTOCOL_VERSION};

/// Prefix and suffix of the Base64 form.
const SENTINEL: (&str, &str) = ("=?base64?", "?=");

/// Room for the fields of a typical request, so that the map does not grow.
pub const TYPICAL_FIELDS: usize = 12;

/// Encodes a text as a field value: unchanged, or in the Base64 form if it is not printable ASCII,
/// has surrounding space, or looks like the Base64 form.
pub fn mirrored(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && text.trim() == text;
    let looks_encoded = text.starts_with(SENTINEL.0) && text.ends_with(SENTINEL.1);
    if is_plain && !looks_encoded {
        return HeaderValue::from_str(text).ok();
    }
    let (before, behind) = SENTINEL;
    HeaderValue::try_from(format!("{before}{}{behind}", STANDARD.encode(text))).ok()
}

/// The fields of every request of 2026-07-28 or later.
pub fn request_fields(version: HeaderValue, method: &str, params: Option<&RawValue>) -> HeaderMap {
    fields_of(version, method, name_of(method, params).as_deref())
}

/// Like [`request_fields`], with `name` as the value of `Mcp-Name`.
pub fn fields_of(version: HeaderValue, method: &str, name: Option<&str>) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(TYPICAL_FIELDS);
    fields.insert(PROTOCOL_VERSION, version);
    if let Some(method) = mirrored(method) {
        fields.insert(METHOD, method);
    }
    if let Some(name) = name.and_then(mirrored) {
        fields.insert(NAME, name);
    }
    fields
}

/// The name, URI or task in a request's params for `Mcp-Name`; `None` if the method requires none or the params
/// have no name.
fn name_of<'p>(method: &str, params: Option<&'p RawValue>) -> Option<Cow<'p, str>> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        name: Option<Cow<'a, str>>,
        #[serde(borrow)]
        uri: Option<Cow<'a, str>>,
        #[serde(borrow, rename = "taskId")]
        task: Option<Cow<'a, str>>,
    }
    let choose: fn(Named<'p>) -> Option<Cow<'p, str>> = match method {
        "tools/call" | "prompts/get" => |named| named.name,
        "resources/read" => |named| named.uri,
        "tasks/get" | "tasks/update" | "tasks/cancel" => |named| named.task,
        _ => return None,
    };
    choose(serde_json::from_str(params?.get()).ok()?)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn text_that_is_not_plain_ascii_or_looks_encoded_is_sent_in_base64() {
        each_row(
            [
                ("us-west1", "us-west1"),
                ("us west 1", "us west 1"),
                ("", ""),
                ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
                (" padded ", "=?base64?IHBhZGRlZCA=?="),
                ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
                ("\tindented", "=?base64?CWluZGVudGVk?="),
                ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ],
            |(text, expected)| {
                assert_eq!(mirrored(text).unwrap(), *expected);
            },
        );
    }

    #[test]
    fn mcp_name_is_the_tool_the_prompt_the_resource_or_the_task() {
        let name = |method, params: &str| {
            let params = RawValue::from_string(params.to_owned()).unwrap();
            name_of(method, Some(&params)).map(Cow::into_owned)
        };
        let both =
            r#"{"name":"a\u0062c","uri":"file:///x","taskId":"0a","arguments":{"name":"other"}}"#;
        assert_eq!(name("tools/call", both).as_deref(), Some("abc"));
        assert_eq!(name("prompts/get", both).as_deref(), Some("abc"));
        assert_eq!(name("resources/read", both).as_deref(), Some("file:///x"));
        assert_eq!(name("tasks/get", both).as_deref(), Some("0a"));
        assert_eq!(name("tasks/list", both), None);
        assert_eq!(name("tools/list", both), None);
        assert_eq!(name("tools/call", "{}"), None);
    }
}
