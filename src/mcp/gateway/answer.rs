//! The HTTP response to a message: one body, or a stream of events.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};

use super::super::error::rpc_error;
use super::super::message::{Id, Outcome, write_response};
use super::media::EVENT_STREAM;
use super::memory::Memory;
use super::refusal::JSON;
use crate::http::{OriginRequest, Pieces, Reply};

/// A request that takes longer is answered with a stream instead of JSON, so that its client soon has
/// the head of the response, and no intermediary closes the connection as idle.
pub const STREAM_AFTER: Duration = Duration::from_secs(1);

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A response before it is sent.
pub enum HttpResponse {
    Whole(Response<Bytes>),
    Events(Pieces),
}

impl HttpResponse {
    pub fn empty(status: StatusCode) -> Self {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        Self::Whole(response)
    }

    pub fn json(status: StatusCode, body: Bytes) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let json = HeaderValue::from_static(JSON);
        response.headers_mut().insert(CONTENT_TYPE, json);
        Self::Whole(response)
    }

    /// Converts to the reply to `request`.
    pub fn into_reply(self, request: OriginRequest) -> Response<Reply> {
        match self {
            Self::Whole(response) => request.respond(response),
            Self::Events(pieces) => {
                let mut head = Response::new(());
                let headers = head.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
                let uncached = HeaderValue::from_static("no-cache, no-transform");
                headers.insert(CACHE_CONTROL, uncached);
                headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
                request.stream(head, pieces)
            }
        }
    }
}

/// Writes a JSON-RPC response. The reservation of memory for the response is released when the
/// bytes are dropped. Writes an error response if memory is exhausted.
pub fn response_bytes(memory: &Memory, id: &Id, outcome: &Outcome) -> Bytes {
    let text = write_response(Some(id), outcome);
    let charge = memory.reserve(text.len());
    let charged = charge.map(|charge| charge.hold(text.into()));
    charged.unwrap_or_else(|denial| write_response(Some(id), &Err(rpc_error(&denial))).into())
}
