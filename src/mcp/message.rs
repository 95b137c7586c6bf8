//! JSON-RPC messages, whose params and results stay the text that was received.

use std::fmt;
use std::sync::Arc;

use addons::contract::{RpcError, RpcOutcome};
use addons::strict_json::{self, StrictJsonError};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// What a request is answered with.
pub type Outcome = RpcOutcome;

/// The longest id, in bytes of its JSON text.
const MAX_ID: usize = 256;

/// The id of a request: a string or a number, in the form that its sender gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(Arc<str>);

impl Id {
    /// An id of our own.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The id that a raw value is.
    pub fn parse(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
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
    /// It is to be answered.
    Request {
        id: Id,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    },
    /// It is not answered.
    Notification {
        method: Arc<str>,
        params: Option<Box<RawValue>>,
    },
    /// It answers a request.
    Response { id: Option<Id>, outcome: Outcome },
}

/// Why a text is no message. `id` is that of the request, where it could be read.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The text is no JSON with one reading.
    #[error("{0}")]
    Json(#[from] StrictJsonError),
    /// Several messages in an array.
    #[error("batches are not taken: send one message at a time")]
    Batch,
    /// JSON, but not JSON-RPC 2.0.
    #[error("no JSON-RPC 2.0 message: {reason}")]
    NotRpc {
        id: Option<Id>,
        reason: &'static str,
    },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RpcError>,
}

impl Message {
    /// Reads one message of at most `most_values` JSON values. Keys that stand twice at any depth,
    /// text that is not UTF-8 and batches are refused.
    pub fn parse(bytes: &[u8], most_values: usize) -> Result<Self, MessageError> {
        strict_json::check_at_most(most_values, bytes)?;
        let is_array = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if is_array {
            return Err(MessageError::Batch);
        }
        let envelope: Envelope<'_> =
            serde_json::from_slice(bytes).map_err(|_| not_rpc(None, "it is no object"))?;
        let id = match envelope.id.map(Id::parse) {
            Some(None) if envelope.id.is_some_and(|id| id.get() != "null") => {
                return Err(not_rpc(None, "its id is neither a string nor a number"));
            }
            id => id.flatten(),
        };
        if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(not_rpc(id, "jsonrpc is not \"2.0\""));
        }
        Self::of(envelope, id)
    }

    fn of(envelope: Envelope<'_>, id: Option<Id>) -> Result<Self, MessageError> {
        let Some(method) = envelope.method else {
            return match (envelope.result, envelope.error) {
                (Some(result), None) => Ok(Self::Response {
                    id,
                    outcome: Ok(result),
                }),
                (None, Some(error)) => Ok(Self::Response {
                    id,
                    outcome: Err(error),
                }),
                _ => Err(not_rpc(
                    id,
                    "it has neither a method nor one result or error",
                )),
            };
        };
        if envelope.result.is_some() || envelope.error.is_some() {
            return Err(not_rpc(id, "it has a method and a result"));
        }
        let Ok(method) = serde_json::from_str::<String>(method.get()) else {
            return Err(not_rpc(id, "its method is no string"));
        };
        let params = envelope.params;
        let is_structured = |raw: &RawValue| raw.get().starts_with(['{', '[']);
        if params.as_deref().is_some_and(|raw| !is_structured(raw)) {
            return Err(not_rpc(id, "its params are no object"));
        }
        let method = method.into();
        Ok(match (id, envelope.id) {
            (Some(id), _) => Self::Request { id, method, params },
            (None, Some(_)) => return Err(not_rpc(None, "its id is null")),
            (None, None) => Self::Notification { method, params },
        })
    }
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
    text.push_str(&serde_json::Value::from(method).to_string());
    if let Some(params) = params {
        text.push_str(",\"params\":");
        text.push_str(params.get());
    }
    text.push('}');
    text
}

/// Writes a response; `id` is `null` where the request's could not be read.
pub fn write_response(id: Option<&Id>, outcome: &Outcome) -> String {
    let id = id.map_or("null", Id::as_json);
    match outcome {
        Ok(result) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"),
        Err(error) => {
            // It was read from JSON, or made of JSON: it always can be written.
            let error = serde_json::to_string(error).unwrap_or_else(|_| "null".to_owned());
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
        }
    }
}
