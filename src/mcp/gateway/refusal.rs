//! Refusals of messages, recorded as denials. All but [`over_limit`] contain the JSON-RPC error
//! that the client gets.

use std::borrow::Cow;
use std::time::Duration;

use addons::contract::{Answer, Code, Denial, RpcError};
use http::StatusCode;

use super::super::error::{INVALID_REQUEST, SESSION_NOT_FOUND, protocol_error};
use super::super::message::{Id, write_response};

/// Media type of messages.
pub const JSON: &str = "application/json";

/// The most bytes of an unread body that are drained. Some clients read the response only after
/// they have sent the whole request.
const DRAIN_BYTES: u64 = 1 << 20;
/// `Retry-After` of a message over a limit of the gateway.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Refuses a message that breaks the protocol.
pub fn refuse(
    status: StatusCode,
    id: Option<&Id>,
    sentence: impl Into<Cow<'static, str>>,
) -> Denial {
    let error = protocol_error(INVALID_REQUEST, sentence);
    refuse_with(Code::MalformedRequest, status, id, error)
}

/// Refuses a message that breaks the protocol, with status 400.
pub fn bad_request(id: Option<&Id>, sentence: impl Into<Cow<'static, str>>) -> Denial {
    refuse(StatusCode::BAD_REQUEST, id, sentence)
}

/// Refuses a message of an unknown session, with status 404.
pub fn session_not_found(sentence: &'static str) -> Denial {
    let error = protocol_error(SESSION_NOT_FOUND, sentence);
    refuse_with(Code::MalformedRequest, StatusCode::NOT_FOUND, None, error)
}

/// Refuses a message. The audit log gets `code`, the client gets `error`.
pub fn refuse_with(code: Code, status: StatusCode, id: Option<&Id>, error: RpcError) -> Denial {
    let answer = Answer {
        status: status.as_u16(),
        content_type: JSON,
        drain_bytes: DRAIN_BYTES,
        body: error_text(id, &error).into(),
    };
    Denial::new(code, error.message).answered_with(answer)
}

/// Refuses a message over a limit of the gateway. `rule` names what is limited.
pub fn over_limit(rule: &'static str, most: usize) -> Denial {
    let sentence = format!("Too many {rule}: at most {most}");
    Denial::new(Code::RateLimited, sentence)
        .with("limit", most)
        .rule(rule)
        .retry_after(RETRY_AFTER)
}

/// An error response. Without an id, the member `id` is left out, since MCP allows no `null` ids.
fn error_text(id: Option<&Id>, error: &RpcError) -> String {
    match id {
        Some(_) => write_response(id, &Err(error.clone())),
        None => {
            let error = serde_json::to_string(error).unwrap_or_else(|_| "null".to_owned());
            format!("{{\"jsonrpc\":\"2.0\",\"error\":{error}}}")
        }
    }
}
