//! Helpers to read and write JSON-RPC messages.

use addons::contract::RpcError;
use addons::json::Members;
use http::StatusCode;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::mcp::{SERVER_ERROR, Version};

/// Limit on the pages of one list. Further pages are not read.
pub const MAX_PAGES: usize = 100;
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// The protocol revision in the `_meta` of a request's params. Clients of revisions up to
/// 2025-11-25 do not send it.
pub fn revision(params: Option<&RawValue>) -> Option<String> {
    let params = Members::read(params?).ok()?;
    let meta = RawValue::from_string(params.get("_meta")?.to_owned()).ok()?;
    text_member(&meta, VERSION_KEY)
}

/// The text of a member of an object; `None` if it is missing or not a string.
pub fn text_member(object: &RawValue, key: &str) -> Option<String> {
    let members = Members::read(object).ok()?;
    Some(members.text(key)?.into_owned())
}

/// The cursor of the next page of a list; `None` on the last page.
pub fn next_cursor(result: &RawValue) -> Option<String> {
    text_member(result, "nextCursor")
}

/// Makes the params of a request for one page of a list. They contain the cursor of the page, and
/// the `_meta` of `call`, which are the params of the client's request.
pub fn page_params(call: Option<&RawValue>, cursor: Option<&str>) -> Option<Box<RawValue>> {
    let call = call.and_then(|params| Members::read(params).ok());
    let meta = call.as_ref().and_then(|params| params.get("_meta"));
    let meta = meta.and_then(|meta| serde_json::from_str(meta).ok());
    let mut params = Map::new();
    params.extend(meta.map(|meta: Value| ("_meta".to_owned(), meta)));
    params.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.into())));
    to_raw_value(&params).ok()
}

/// The `_meta` of requests that the CLI itself makes. It declares no client capabilities, so that
/// servers do not ask for input. `mcp stdio` forwards the `_meta` of its client instead.
pub fn own_meta() -> Value {
    json!({
        (VERSION_KEY): Version::V2026_07_28.as_str(),
        "io.modelcontextprotocol/clientInfo": {
            "name": "unified-proxy-mcp",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// Converts an unexpected HTTP response to a JSON-RPC error with code [`SERVER_ERROR`]. For a
/// denial, the message is its sentence, and `data` has the HTTP status, the code and the details.
/// Otherwise, the message names the HTTP status.
pub fn refusal(status: StatusCode, body: &[u8]) -> RpcError {
    let mut data = Map::new();
    data.insert("status".to_owned(), status.as_u16().into());
    let mut message = format!("unexpected response of the gateway: {status}");
    if let Ok(Value::Object(denial)) = serde_json::from_slice(body) {
        for (key, value) in denial {
            match (key.as_str(), value) {
                ("error", Value::String(sentence)) => message = sentence,
                (_, value) => {
                    data.insert(key, value);
                }
            }
        }
    }
    RpcError {
        code: SERVER_ERROR,
        message: message.into(),
        data: to_raw_value(&data).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_sentence_and_details_of_a_denial_or_else_names_the_status() {
        let body = br#"{"error":"Rate limit exceeded","code":"rate_limited","retry_after":3}"#;
        let error = refusal(StatusCode::TOO_MANY_REQUESTS, body);
        assert_eq!(error.message, "Rate limit exceeded");
        let data: Value = serde_json::from_str(error.data.unwrap().get()).unwrap();
        let expected = json!({"status": 429, "code": "rate_limited", "retry_after": 3});
        assert_eq!(data, expected);
        let bare = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        let expected = "unexpected response of the gateway: 502 Bad Gateway";
        assert_eq!(bare.message, expected);
    }

    #[test]
    fn a_page_is_requested_with_the_meta_of_the_call() {
        let call =
            r#"{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let call = RawValue::from_string(call.to_owned()).unwrap();
        assert_eq!(revision(Some(&call)).as_deref(), Some("2026-07-28"));
        let params = page_params(Some(&call), Some("c")).unwrap();
        let params: Value = serde_json::from_str(params.get()).unwrap();
        let expected = json!({
            "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
            "cursor": "c",
        });
        assert_eq!(params, expected);
    }
}
