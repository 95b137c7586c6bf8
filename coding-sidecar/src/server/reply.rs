//! Responses: one JSON object, or the lines of JSON of a command.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{Either, Full};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

/// The body of a response: one JSON object, or the lines of a command.
pub type ReplyBody = Either<Full<Bytes>, Lines>;

/// The lines of JSON of a running command.
pub struct Lines(mpsc::Receiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let line = self.get_mut().0.poll_recv(context);
        line.map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

/// The response to a request.
pub type Reply = Response<ReplyBody>;

/// An error response.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    error: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// A refusal with a sentence for the client.
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            header: None,
        }
    }

    /// The refusal of an invalid request or a failed operation: 400.
    pub fn failed(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, HeaderValue::from_static(value)));
        self
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let body = json!({ "ok": false, "error": refusal.error });
        let mut reply = json(refusal.status, encode(&body));
        reply.headers_mut().extend(refusal.header);
        reply
    }
}

/// The refusal of a request whose token is missing or wrong (RFC 6750, section 3): 401.
pub fn unauthorized(error: String) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, error).with(WWW_AUTHENTICATE, "Bearer")
}

/// The refusal of a method other than `verb`, the only one that `path` accepts: 405.
pub fn wrong_verb(path: &str, verb: &'static str) -> Refusal {
    let error = format!("{path} accepts only {verb}");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error).with(ALLOW, verb)
}

/// The refusal of a valid request for lack of capacity: 503 with `Retry-After: 1`.
pub fn overloaded(reason: &str) -> Refusal {
    let error = format!("{reason}; try again later");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error).with(RETRY_AFTER, "1")
}

/// Encodes a result as `{"ok":true,"result":…}`.
pub fn success<R: Serialize>(result: R) -> Vec<u8> {
    #[derive(Serialize)]
    struct Success<R> {
        ok: bool,
        result: R,
    }
    encode(&Success { ok: true, result })
}

/// The response to `/health`.
pub fn health() -> Reply {
    let health = json!({ "ok": true, "version": crate::VERSION });
    json(StatusCode::OK, encode(&health))
}

/// A response whose body is the JSON `text`.
pub fn json(status: StatusCode, text: Vec<u8>) -> Reply {
    let body = Either::Left(Full::new(text.into()));
    reply(status, "application/json", body)
}

/// A response with the lines of a command. It ends when the command has ended.
pub fn lines(lines: mpsc::Receiver<Bytes>) -> Reply {
    let body = Either::Right(Lines(lines));
    reply(StatusCode::OK, "application/x-ndjson", body)
}

fn reply(status: StatusCode, kind: &'static str, body: ReplyBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Encodes a value as JSON. That fails only for maps whose keys are not strings, which no response
/// has.
fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
