//! Checks headers that mirror the body. Headers and body must agree, since intermediaries may route
//! by the headers.

use std::borrow::Cow;

use addons::contract::RpcError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};

use super::super::super::error::{HEADER_MISMATCH, protocol_error};
use super::super::super::fields::{METHOD, NAME, PROTOCOL_VERSION};
use super::super::super::message::text;
use super::params::ModernParams;

const PREFIX: &str = "=?base64?";
const SUFFIX: &str = "?=";

/// The error for a header that differs from the body.
pub fn mismatch(message: impl Into<Cow<'static, str>>) -> RpcError {
    protocol_error(HEADER_MISMATCH, message)
}

/// The value of a header; `None` without it. Fails if the header is repeated, or if its value has
/// characters other than visible ASCII, spaces and tabs.
pub fn value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(mismatch(format!("Header mismatch: {name} appears twice")));
    }
    match value.to_str() {
        Ok(value) => Ok(Some(value.trim())),
        Err(_) => {
            let message =
                format!("Header mismatch: {name} has characters that are not valid in its value");
            Err(mismatch(message))
        }
    }
}

/// Decodes a value: plain text, or base64 between markers. `None` for base64 that is not canonical
/// or not UTF-8.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let marked = value
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_suffix(SUFFIX));
    let Some(encoded) = marked else {
        return Some(value.into());
    };
    // `STANDARD` refuses missing padding and non-zero trailing bits.
    let decoded = STANDARD.decode(encoded).ok()?;
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

/// Checks the headers that mirror the revision, the method and, for some methods, the name, URI
/// or task.
pub fn check(
    headers: &HeaderMap,
    version: &str,
    method: &str,
    params: &ModernParams<'_>,
) -> Result<(), RpcError> {
    agree(headers, &PROTOCOL_VERSION, version)?;
    agree(headers, &METHOD, method)?;
    let named = match method {
        "tools/call" | "prompts/get" => params.name,
        "resources/read" => params.uri,
        "tasks/get" | "tasks/update" | "tasks/cancel" => params.task_id,
        _ => None,
    };
    match named.and_then(text) {
        Some(named) => agree_encoded(headers, &NAME, &named),
        // If the method needs one of these, its absence is reported later.
        None => value(headers, &NAME).map(|_| ()),
    }
}

fn agree(headers: &HeaderMap, name: &HeaderName, expected: &str) -> Result<(), RpcError> {
    match value(headers, name)? {
        Some(value) if value == expected => Ok(()),
        found => Err(differs(name, found, expected)),
    }
}

fn agree_encoded(headers: &HeaderMap, name: &HeaderName, expected: &str) -> Result<(), RpcError> {
    let found = value(headers, name)?;
    match found.and_then(decode) {
        Some(decoded) if decoded == expected => Ok(()),
        _ => Err(differs(name, found, expected)),
    }
}

fn differs(name: &HeaderName, found: Option<&str>, expected: &str) -> RpcError {
    let message = match found {
        Some(found) => {
            format!("Header mismatch: {name} is {found:?}, the body says {expected:?}")
        }
        None => format!("Header mismatch: {name} is missing, the body says {expected:?}"),
    };
    mismatch(message)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::value::RawValue;
    use testkit::each_row;

    use super::*;

    #[test]
    fn only_canonical_base64_between_markers_is_decoded() {
        each_row(
            [
                ("us-west1", Some("us-west1")),
                ("=?base64?SGVsbG8=?=", Some("Hello")),
                ("=?base64?SGVsbG8sIOS4lueVjA==?=", Some("Hello, 世界")),
                ("=?base64?SGVsbG8?=", None),
                ("=?base64?SGVs!!!bG8=?=", None),
                ("=?base64?SGVsbG9=?=", None),
                ("=?base64?/w==?=", None),
                ("=?base64?SGVsbG8=", Some("=?base64?SGVsbG8=")),
                ("SGVsbG8=?=", Some("SGVsbG8=?=")),
                ("=?BASE64?SGVsbG8=?=", Some("=?BASE64?SGVsbG8=?=")),
            ],
            |(value, text)| assert_eq!(decode(value).as_deref(), text, "{value}"),
        );
    }

    fn checked(fields: &[(&'static str, &'static str)], method: &str, params: &str) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let value = HeaderValue::from_static(value);
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
        }
        let params = RawValue::from_string(params.to_owned()).unwrap();
        let params = ModernParams::read(Some(&params));
        let checked = check(&headers, "2026-07-28", method, &params);
        checked.is_ok_and(|()| true)
    }

    #[test]
    fn headers_must_agree_with_the_revision_the_method_and_the_name_in_the_body() {
        const V: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
        const CALL: (&str, &str) = ("mcp-method", "tools/call");
        each_row(
            [
                (&[V, CALL, ("mcp-name", "mail")][..], true),
                (&[V, CALL, ("mcp-name", "  mail  ")], true),
                (&[V, CALL, ("mcp-name", "=?base64?bWFpbA==?=")], true),
                (&[V, CALL, ("mcp-name", "other")], false),
                (&[V, CALL, ("mcp-name", "MAIL")], false),
                (&[V, CALL], false),
                (&[V, ("mcp-name", "mail")], false),
                (
                    &[V, ("mcp-method", "TOOLS/CALL"), ("mcp-name", "mail")],
                    false,
                ),
                (&[CALL, ("mcp-name", "mail")], false),
                (&[V, V, CALL, ("mcp-name", "mail")], false),
                (
                    &[V, CALL, ("mcp-name", "mail"), ("mcp-name", "other")],
                    false,
                ),
                (
                    &[
                        ("mcp-protocol-version", "2025-11-25"),
                        CALL,
                        ("mcp-name", "mail"),
                    ],
                    false,
                ),
            ],
            |(fields, passes)| {
                let params = "{\"name\":\"mail\"}";
                assert_eq!(checked(fields, "tools/call", params), passes, "{fields:?}");
            },
        );
        let read = [V, ("mcp-method", "resources/read"), ("mcp-name", "a://b")];
        assert!(checked(&read, "resources/read", "{\"uri\":\"a:\\/\\/b\"}"));
        assert!(!checked(&read, "resources/read", "{\"uri\":\"a://c\"}"));
        let list = [V, ("mcp-method", "tools/list")];
        assert!(checked(&list, "tools/list", "{}"));
    }
}
