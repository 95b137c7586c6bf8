//! A client's request to the core.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::super::caller::TraceContext;
use super::{Caller, Events};

/// A client's request.
pub struct ClientRequest {
    /// The legacy client's session, or the modern client as this request describes it.
    pub caller: Arc<Caller>,
    /// Its method.
    pub method: Arc<str>,
    /// Its params, as the client wrote them.
    pub params: Option<Box<RawValue>>,
    /// The trace context of its HTTP request.
    pub trace: Option<TraceContext>,
    /// Takes the server's messages that belong to this request.
    pub events: Events,
}
