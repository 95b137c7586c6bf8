//! Facts that an addon or the engine puts into a flow's slots for any addon to read.

use std::sync::Arc;

/// The request reads only public data: no credential may be added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous;

/// The flow is a look-up: an addon sent it to judge another request of the same container, and that
/// request waits for the response. The circuit breaker and the limit on waiting flows count the two
/// requests as one. The GitHub addon passes the look-up unjudged. Only the engine sets this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup;

/// The id of the MCP session that a message belongs to. The engine sets it for the policy's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpSession(pub Arc<str>);

/// The GitHub addon has handled the request as an API call, so the git addon skips it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCall;

/// The flow passed since a person granted it. The grant may have ended in the meantime, so a
/// long-lived flow is judged again as soon as it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestsOnGrant;
