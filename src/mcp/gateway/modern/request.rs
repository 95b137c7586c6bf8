//! A request of a modern revision, and a response with one JSON body.

use std::sync::Arc;

use addons::contract::{Code, Denial, RpcError};
use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;

use super::super::super::error::{
    HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION,
};
use super::super::super::message::{Id, Outcome};
use super::super::answer::{HttpResponse, response_bytes};
use super::super::refusal::refuse_with;
use super::super::visit::Visit;

pub struct Request<'a> {
    pub id: Id,
    pub method: Arc<str>,
    pub params: Option<Box<RawValue>>,
    pub body: &'a Bytes,
}

impl Request<'_> {
    /// Refuses the request with a JSON-RPC error.
    pub fn refuse(&self, error: RpcError) -> Denial {
        let (code, status) = (Code::MalformedRequest, StatusCode::BAD_REQUEST);
        refuse_with(code, status, Some(&self.id), error)
    }
}

/// A response with one JSON body. A few errors have a specific HTTP status in this revision.
pub fn json_response(visit: &Visit<'_>, id: &Id, outcome: &Outcome) -> HttpResponse {
    let status = match outcome.as_ref().map_err(|error| error.code) {
        Err(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Err(HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY | UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    };
    HttpResponse::json(status, response_bytes(&visit.memory, id, outcome))
}
