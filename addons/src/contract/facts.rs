//! Facts that one addon, or the engine, leaves in a flow's slots and any addon may look for.

use std::sync::Arc;

/// The request reads only public data: no credential may be added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous;

/// An addon needs the answer to this flow before it can judge another request of the same
/// container. The flow counts as part of that request; only the engine marks one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup;

/// The MCP session that a message belongs to, by its id; the engine names it for the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpSession(pub Arc<str>);

/// An API's own addon judged the request. Addons that guard other uses of the same host leave it
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCall;
