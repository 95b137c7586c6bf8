//! A request of a modern revision, and a response with one JSON body.

use std::sync::Arc;

use addons::contract::{Code, Denial, RpcError};
use http::StatusCode;
use serde_json::value::RawValue;

use super::super::super::caller::Caller;
use super::super::super::error::{
    HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION,
};
use super::super::super::message::{Id, Outcome};
use super::super::answer::{HttpResponse, response_bytes};
use super::super::refusal::refuse_with;
use super::super::visit::Visit;
use super::suspended::binding;

/// Methods whose results may be `input_required`.
pub const MAY_ASK: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

pub struct Request {
    pub id: Id,
    pub method: Arc<str>,
    pub params: Option<Box<RawValue>>,
    /// Whether the connection's thread would read the params for too long.
    pub is_long: bool,
}

impl Request {
    /// Computes something from the params: on a worker if they are long.
    pub async fn compute<T: Send + 'static>(
        &self,
        visit: &Visit<'_>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Denial> {
        match self.is_long {
            true => visit.request.inspect_on_worker(work).await,
            false => Ok(work()),
        }
    }

    /// The digest by which a retry of the request is recognized. Empty if the results of the method
    /// or for the client are never `input_required`: servers cannot ask a client without
    /// capabilities.
    pub async fn binding(&self, visit: &Visit<'_>, caller: &Caller) -> Result<Arc<str>, Denial> {
        if !MAY_ASK.contains(&&*self.method) || caller.capabilities.get() == "{}" {
            return Ok("".into());
        }
        let (method, params) = (Arc::clone(&self.method), self.params.clone());
        let work = move || binding(&method, params.as_deref());
        self.compute(visit, work).await
    }

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
