//! JSON-RPC errors: those of the protocol, and denials.

use std::borrow::Cow;

use addons::contract::{Code, Denial, RpcError};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a message, or the message breaks the protocol.
pub const INVALID_REQUEST: i64 = -32600;
/// The method is unknown.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The params are invalid for the method.
pub const INVALID_PARAMS: i64 = -32602;
/// A denial or failure without a more specific code.
pub const SERVER_ERROR: i64 = -32000;
/// The session is unknown or has ended. Not part of the protocol, but of the servers of the
/// TypeScript SDK; Claude Code opens another session only after this code.
pub const SESSION_NOT_FOUND: i64 = -32001;
/// A header differs from the body (2026-07-28).
pub const HEADER_MISMATCH: i64 = -32020;
/// The request needs a capability that the client did not declare (2026-07-28).
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// The gateway does not support the revision (2026-07-28).
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// A protocol error without data.
pub fn protocol_error(code: i64, message: impl Into<Cow<'static, str>>) -> RpcError {
    RpcError {
        code,
        message: message.into(),
        data: None,
    }
}

/// Whether an error is a verdict on a call: a policy or a person denied it, or nobody decided.
pub fn is_verdict(error: &RpcError) -> bool {
    let verdicts = [Code::PolicyDenied, Code::PolicyDeniedContinue];
    verdicts.iter().any(|code| number_of(*code).0 == error.code)
}

/// The error for an unknown method.
pub fn method_not_found(method: &str) -> RpcError {
    protocol_error(METHOD_NOT_FOUND, format!("Method not found: {method}"))
}

/// Renders a denial as a JSON-RPC error. `data` holds the denial's code, status and details. The
/// message has the sentence, since most agents show their model nothing else.
pub fn rpc_error(denial: &Denial) -> RpcError {
    let (code, name) = number_of(denial.code());
    let sentence = denial.sentence();
    let message = name.map_or_else(
        || sentence.to_owned(),
        |name| {
            let what = sentence
                .strip_prefix("Denied by policy: ")
                .unwrap_or(sentence);
            format!("{name}: {what}")
        },
    );
    RpcError {
        code,
        message: message.into(),
        data: raw(data(denial)),
    }
}

/// The code of the JSON-RPC error for a denial code, and the name with which its message begins.
const fn number_of(code: Code) -> (i64, Option<&'static str>) {
    match code {
        Code::PolicyDenied => (-32950, Some(code.as_str())),
        Code::PolicyDeniedContinue => (-32951, Some(code.as_str())),
        Code::PolicyBackendReservedMisuse => (-32952, Some(code.as_str())),
        Code::PolicyEvaluatorError => (-32953, Some(code.as_str())),
        Code::ToolNotFound | Code::MalformedRequest => (INVALID_PARAMS, None),
        _ => (SERVER_ERROR, None),
    }
}

/// The details of a denial, with its code and status. The sentence is left out: it is the message
/// of the error, or says the same as the code and the details.
fn data(denial: &Denial) -> Value {
    let code = denial.code();
    let mut data = Map::new();
    data.insert("code".into(), code.as_str().into());
    data.insert("status".into(), code.status().into());
    if let Value::Object(details) = denial.to_json() {
        let details = details.into_iter();
        data.extend(details.filter(|(key, _)| key != "error" && key != "code" && key != "status"));
    }
    Value::Object(data)
}

/// Converts a value to raw JSON. Never `None`: a [`Value`] can always be written.
pub fn raw(value: impl Into<Value>) -> Option<Box<RawValue>> {
    to_raw_value(&value.into()).ok()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn rendered(denial: &Denial) -> Value {
        serde_json::to_value(rpc_error(denial)).unwrap()
    }

    #[test]
    fn policy_denials_have_reserved_numbers_and_messages_that_begin_with_the_code() {
        each_row(
            [
                (Code::PolicyDenied, -32950, 403),
                (Code::PolicyDeniedContinue, -32951, 403),
                (Code::PolicyBackendReservedMisuse, -32952, 502),
                (Code::PolicyEvaluatorError, -32953, 500),
            ],
            |(code, number, status)| {
                let denial = Denial::new(code, "Denied by policy: too late").with("tool", "mail");
                let error = rendered(&denial);
                assert_eq!(error["code"], number);
                assert_eq!(error["message"], format!("{}: too late", code.as_str()));
                assert_eq!(error["data"]["code"], code.as_str());
                assert_eq!(error["data"]["status"], status);
                assert_eq!(error["data"]["tool"], "mail");
                assert_eq!(error["data"].get("error"), None);
            },
        );
    }

    #[test]
    fn other_denials_have_their_sentence_and_retry_after() {
        let unknown = Denial::new(Code::ToolNotFound, "Unknown tool: mail");
        assert_eq!(rendered(&unknown)["code"], INVALID_PARAMS);
        let malformed = Denial::malformed("the arguments are not an object");
        assert_eq!(rendered(&malformed)["code"], INVALID_PARAMS);
        assert_eq!(rendered(&unknown)["message"], "Unknown tool: mail");
        let wait = std::time::Duration::from_secs(3);
        let limited = Denial::new(Code::RateLimited, "Rate limit exceeded").retry_after(wait);
        let error = rendered(&limited);
        assert_eq!(error["code"], SERVER_ERROR);
        assert_eq!(error["message"], "Rate limit exceeded");
        assert_eq!(error["data"]["status"], 429);
        assert_eq!(error["data"]["retry_after"], 3);
    }
}
