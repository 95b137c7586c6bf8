//! A request of a modern revision, and an answer in one piece.

use std::sync::Arc;

use addons::contract::{Code, Denial, RpcError};
use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;

use super::super::super::error::{
    HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION,
};
use super::super::super::message::{Id, Outcome};
use super::super::answer::{Answered, response_bytes};
use super::super::refusal::refuse_with;
use super::super::visit::Visit;
use super::envelope;

pub struct Request<'a> {
    pub id: Id,
    pub method: Arc<str>,
    pub params: Option<Box<RawValue>>,
    pub body: &'a Bytes,
}

impl Request<'_> {
    /// Refuses the request with a JSON-RPC error.
    pub fn refuse(&self, error: RpcError) -> Denial {
        let code = Code::MalformedRequest;
        refuse_with(code, envelope::STATUS, Some(&self.id), error)
    }
}

/// An answer in one piece. A few errors have a specific HTTP status in this revision.
pub fn whole(visit: &Visit<'_>, id: &Id, outcome: &Outcome) -> Answered {
    let status = match outcome.as_ref().map_err(|error| error.code) {
        Err(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Err(HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY | UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    };
    Answered::json(status, response_bytes(&visit.memory, id, outcome))
}
