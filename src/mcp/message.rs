//! JSON-RPC messages. Params and results are kept as the received text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use addons::contract::RpcOutcome;
use addons::json::strict::{self, StrictJsonError};
use addons::json::write_string;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// The result or error of a request.
pub type Outcome = RpcOutcome;

/// The longest id, in bytes of its JSON text.
const MAX_ID: usize = 256;

/// The id of a request: a string or a number, in the JSON text that the sender wrote.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(Arc<str>);

impl Id {
    /// An id that the gateway assigns.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The id as a number that the gateway may have assigned. Some servers answer with `"1"` or
    /// `1.0` instead of `1`.
    pub fn as_number(&self) -> Option<u64> {
        let text = self.0.trim_matches('"');
        text.strip_suffix(".0").unwrap_or(text).parse().ok()
    }

    /// Reads an id from valid JSON; `None` if the value is neither a string nor a number, or is too
    /// long.
    pub fn parse(text: &str) -> Option<Self> {
        let first = text.bytes().next()?;
        let is_id = first == b'"' || first == b'-' || first.is_ascii_digit();
        (is_id && text.len() <= MAX_ID).then(|| Self(text.into()))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One message.
#[derive(Debug)]
pub enum Message {
    /// A message that requires a response.
    Request {
        id: Id,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    },
    /// A message without a response.
    Notification {
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    },
    /// The response to a request. The id is `None` if the sender could not read the request's id.
    Response { id: Option<Id>, outcome: Outcome },
}

/// Why a text is not a message.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The text is not JSON, is ambiguous, or has too many or too deeply nested values.
    #[error("{0}")]
    Json(#[from] StrictJsonError),
    /// An array, even if it has only one message.
    #[error("batches are not accepted: send one message at a time")]
    Batch,
    /// JSON, but not JSON-RPC 2.0. `id` is the id of the message, if it could be read.
    #[error("not a JSON-RPC 2.0 message: {reason}")]
    NotRpc {
        id: Option<Id>,
        reason: &'static str,
    },
}

/// The members of a message; `None` if absent. A member that is `null` is `Some`.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Reads a member; one that is `null` is `Some`.
pub fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Returns the member; `None` also if it is `null`.
fn given(member: Option<&RawValue>) -> Option<&RawValue> {
    member.filter(|value| value.get() != "null")
}

impl Message {
    /// Reads one message of at most `most_values` JSON values. Refuses repeated keys at any depth,
    /// text that is not UTF-8, and batches.
    pub fn parse(bytes: &[u8], most_values: usize) -> Result<Self, MessageError> {
        let text = strict::check_at_most(most_values, bytes)?;
        let text = text.trim_ascii_start();
        if text.starts_with('[') {
            return Err(MessageError::Batch);
        }
        let envelope: Envelope<'_> =
            serde_json::from_str(text).map_err(|_| not_rpc(None, "it is not an object"))?;
        let id = match given(envelope.id) {
            Some(id) => match Id::parse(id.get()) {
                Some(id) => Some(id),
                None => {
                    return Err(not_rpc(
                        None,
                        "its id is not a string or a number, or is too long",
                    ));
                }
            },
            None => None,
        };
        if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(not_rpc(id, "jsonrpc is not \"2.0\""));
        }
        match given(envelope.method) {
            Some(method) => Self::request_or_notification(&envelope, id, method),
            None => Self::response(&envelope, id),
        }
    }

    fn request_or_notification(
        envelope: &Envelope<'_>,
        id: Option<Id>,
        method: &RawValue,
    ) -> Result<Self, MessageError> {
        if given(envelope.result).is_some() || given(envelope.error).is_some() {
            return Err(not_rpc(id, "it has both a method and a result or error"));
        }
        let Some(method) = text(method) else {
            return Err(not_rpc(id, "its method is not a string"));
        };
        let params = given(envelope.params);
        if params.is_some_and(|params| !params.get().starts_with(['{', '['])) {
            return Err(not_rpc(id, "its params are neither an object nor an array"));
        }
        let (method, params) = (method.into(), params.map(RawValue::to_owned));
        match id {
            Some(id) => Ok(Self::Request { id, method, params }),
            None if envelope.id.is_some() => Err(not_rpc(None, "its id is null")),
            None => Ok(Self::Notification { method, params }),
        }
    }

    fn response(envelope: &Envelope<'_>, id: Option<Id>) -> Result<Self, MessageError> {
        let outcome = match (given(envelope.result), given(envelope.error)) {
            (Some(result), None) => Ok(result.to_owned()),
            (None, Some(error)) => match serde_json::from_str(error.get()) {
                Ok(error) => Err(error),
                Err(_) => return Err(not_rpc(id, "its error has no code and message")),
            },
            _ => {
                return Err(not_rpc(
                    id,
                    "it has neither a method nor exactly one of result and error",
                ));
            }
        };
        Ok(Self::Response { id, outcome })
    }
}

/// The text of a JSON string; `None` for any other value.
pub fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(inner.into());
    }
    serde_json::from_str::<String>(json).ok().map(Cow::Owned)
}

fn not_rpc(id: Option<Id>, reason: &'static str) -> MessageError {
    MessageError::NotRpc { id, reason }
}

/// Writes a request; without an id, a notification.
pub fn write_request(id: Option<&Id>, method: &str, params: Option<&RawValue>) -> String {
    let mut text = String::with_capacity(64 + params.map_or(0, |params| params.get().len()));
    text.push_str("{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        text.push_str(",\"id\":");
        text.push_str(id.as_json());
    }
    text.push_str(",\"method\":");
    write_string(method, &mut text);
    if let Some(params) = params {
        text.push_str(",\"params\":");
        text.push_str(params.get());
    }
    text.push('}');
    text
}

/// Writes a response. Without an id, as for a request whose id could not be read, `id` is `null`.
pub fn write_response(id: Option<&Id>, outcome: &Outcome) -> String {
    let id = id.map_or("null", Id::as_json);
    match outcome {
        Ok(result) => {
            let parts = [
                "{\"jsonrpc\":\"2.0\",\"id\":",
                id,
                ",\"result\":",
                result.get(),
                "}",
            ];
            parts.concat()
        }
        Err(error) => {
            // Built from JSON values, so it can always be written.
            let error = serde_json::to_string(error).unwrap_or_else(|_| "null".to_owned());
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
        }
    }
}
/// Whether a JSON text is a progress token: a string or a number.
pub fn is_progress_token(json: &str) -> bool {
    json.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
}
