//! A client's request to the core.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::super::caller::TraceContext;
use super::{Caller, Events};

/// A client's request, with what differs between the requests of one session.
pub struct ClientRequest {
    /// The session, or the modern client as this request describes it.
    pub caller: Arc<Caller>,
    /// Its method.
    pub method: Arc<str>,
    /// Its params, as the client wrote them.
    pub params: Option<Box<RawValue>>,
    /// The trace that its HTTP request is part of.
    pub trace: Option<TraceContext>,
    /// Takes the server's messages that belong to it.
    pub events: Events,
}
