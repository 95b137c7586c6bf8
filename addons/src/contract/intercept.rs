//! Tool calls that another gateway or an agent's hook asks about, and what they share with the call
//! at the gateway.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::asked::Executing;
use super::effect::Effect;

/// The server of a tool that no configured server has, and that another gateway runs.
pub const INTERCEPTOR: &str = "interceptor";
/// The server of the tools of Claude Code itself.
pub const CLAUDE_CODE: &str = "claude-code";

/// What the interceptor API knows of a call, in a slot of the call's flow. A call at the gateway
/// that names a request context has one too.
#[derive(Default)]
pub struct Intercept {
    /// The id of the tool, as the caller writes it. The policies' `tool_id`; if `None`, the tool's
    /// name.
    pub tool_id: Option<Box<str>>,
    /// The id of the agent, as the caller writes it. The policies' `agent_id`; if `None`, the
    /// container's id. It proves nothing.
    pub agent_id: Option<Box<str>>,
    /// The id of the session, as the caller writes it.
    pub session: Option<Box<str>>,
    /// The request context as JSON: the policies' `context`.
    pub context: Option<Box<str>>,
    /// The decision on the request, if the flow is for its response.
    pub decision_before: Option<Effect>,
    /// The params of the request as far as they are known, if the flow is for its response.
    pub params: Option<Box<RawValue>>,
    /// The approval that `before` got for the call.
    pub handover: Option<Arc<Handover>>,
    /// The W3C trace context of the message, if the message has none itself.
    pub traceparent: Option<Box<str>>,
    /// Whether the gateway asks, and the call is its own: the tool must be one of a configured
    /// server.
    pub is_at_gateway: bool,
    /// Whether neither the tool nor the agent of a response is known: a bare result of Docker's
    /// gateway.
    pub is_unattributed: bool,
}

/// The approval of a call for which `before` asked, until the gateway sends that call: once, and no
/// other call.
pub struct Handover {
    /// The server and the server's own name of the tool.
    pub tool: (Arc<str>, Arc<str>),
    /// See [`McpRecord::args_sha256`](super::McpRecord::args_sha256).
    pub args_sha256: Box<str>,
    /// The id of the question or of the grant, for the audit.
    pub approval: Option<Box<str>>,
    executing: Mutex<Option<Executing>>,
}

impl Handover {
    /// An approval that is not used yet.
    #[must_use]
    pub fn new(
        tool: (Arc<str>, Arc<str>),
        args_sha256: Box<str>,
        approval: Option<Box<str>>,
        executing: Executing,
    ) -> Self {
        Self {
            tool,
            args_sha256,
            approval,
            executing: Mutex::new(Some(executing)),
        }
    }

    /// Takes the approval for a call. `None` if it is taken, or belongs to another call.
    pub(crate) fn take(&self, tool: (&str, &str), args_sha256: &str) -> Option<Executing> {
        let is_same = tool == (&*self.tool.0, &*self.tool.1) && *self.args_sha256 == *args_sha256;
        is_same.then(|| self.executing.lock().take()).flatten()
    }

    /// Gives the approval back, since its call was not sent.
    pub(crate) fn give_back(&self, executing: Executing) {
        *self.executing.lock() = Some(executing);
    }
}

/// The `traceparent` of the messages that follow from a message of the interceptor API, in a slot of
/// the message's flow.
pub struct SpanParent(pub Box<str>);

/// What the policies returned as `metadata` for a message, in a slot of its flow.
pub struct PolicyMetadata(pub Box<RawValue>);

/// The arguments that the policies put in the place of a call's arguments, in a slot of its flow:
/// without the fields that an override sets, which may be secrets.
pub struct RedactedArguments(pub Box<RawValue>);

/// In a flow's slot if the policies replaced the result or error of the flow's response.
pub struct RedactedOutcome;
