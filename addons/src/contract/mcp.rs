//! MCP messages that the chain judges.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::container::Container;
use super::definition::Definition;
use super::denial::{Code, Denial, Verdict};
use super::effect::Effect;
use super::level::Standing;
use super::target::McpTarget;

/// The direction of a request or notification. A response has the direction of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server, for example `tools/call`.
    ToServer,
    /// From the server to the client: sampling, elicitation, roots, notifications.
    ToClient,
}

/// The kind of a JSON-RPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Has an id and gets a response.
    Request,
    /// Gets no response.
    Notification,
    /// The response to a request.
    Response,
}

/// The error of a JSON-RPC response. `data` is passed on byte for byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RpcError {
    /// The error code.
    pub code: i64,
    /// The error in one sentence.
    pub message: Cow<'static, str>,
    /// Details that the sender added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    /// The code of an error that requires the user to visit the URLs in `data.elicitations` before
    /// the request is repeated. Only protocol version 2025-11-25 has it.
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
}

/// The result or error of a request.
pub type RpcOutcome = Result<Box<RawValue>, RpcError>;

/// The content of a frame as raw JSON, which keeps number forms, key order and unknown fields.
#[derive(Clone, Debug)]
pub enum FrameBody {
    /// The params of a request or notification; `None` if it has no `params`.
    Params(Option<Box<RawValue>>),
    /// The result or error of a response.
    Outcome(RpcOutcome),
}

/// One JSON-RPC message between a client and a server (or the gateway itself), while the chain
/// judges it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The direction; for a response, the direction of its request.
    pub direction: Direction,
    /// The receiver, or for a server's message the sender.
    pub target: McpTarget,
    /// The kind of message.
    pub kind: FrameKind,
    /// The method of the message; for a response, the method of its request.
    pub method: Arc<str>,
    /// The tool's definition as the server lists it. Set for a `tools/call`, for its response, for
    /// messages that the server sends to the client during the call, and for the client's answers
    /// to these.
    pub definition: Option<Arc<Definition>>,
    /// The tools that the server lists, if they are known. Set only for a client's message or
    /// answer without a `definition`, and only if the container's level
    /// [excludes the open world](super::Level::excludes_open_world).
    pub tools: Option<Arc<[Arc<Definition>]>>,
    /// The content, which is sent as the addons leave it.
    pub body: FrameBody,
}

impl Frame {
    /// A request.
    #[must_use]
    pub fn request(
        direction: Direction,
        target: McpTarget,
        method: impl Into<Arc<str>>,
        params: Option<Box<RawValue>>,
    ) -> Self {
        Self {
            direction,
            target,
            kind: FrameKind::Request,
            method: method.into(),
            definition: None,
            tools: None,
            body: FrameBody::Params(params),
        }
    }

    /// A notification.
    #[must_use]
    pub fn notification(
        direction: Direction,
        target: McpTarget,
        method: impl Into<Arc<str>>,
        params: Option<Box<RawValue>>,
    ) -> Self {
        Self {
            kind: FrameKind::Notification,
            ..Self::request(direction, target, method, params)
        }
    }

    /// The response to a request; `direction` and `target` are the request's.
    #[must_use]
    pub fn response(
        direction: Direction,
        target: McpTarget,
        method: impl Into<Arc<str>>,
        outcome: RpcOutcome,
    ) -> Self {
        Self {
            kind: FrameKind::Response,
            body: FrameBody::Outcome(outcome),
            ..Self::request(direction, target, method, None)
        }
    }

    /// Adds the definition of the tool that is called.
    #[must_use]
    pub fn of_tool(mut self, definition: Arc<Definition>) -> Self {
        self.definition = Some(definition);
        self
    }

    /// The params of a request or notification; `None` if it has none, and for a response.
    pub fn params(&self) -> Option<&RawValue> {
        match &self.body {
            FrameBody::Params(params) => params.as_deref(),
            FrameBody::Outcome(_) => None,
        }
    }
}

/// The subject of an MCP flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpSubject {
    /// The server; `None` if the gateway itself responds.
    pub server: Option<Arc<str>>,
    /// The method.
    pub method: Arc<str>,
    /// The server's own name of the tool or prompt, or the URI of the resource; `None` if the
    /// message concerns none of these.
    pub name: Option<Arc<str>>,
}

/// Facts about an MCP message for the audit, besides server and tool.
#[derive(Clone, Debug, Default)]
pub struct McpRecord {
    /// Hexadecimal SHA-256 of the canonical form of a tool call's arguments, before overrides
    /// change them.
    pub args_sha256: Option<Box<str>>,
    /// The strictest decision, of a policy or of the addon.
    pub decision: Option<Effect>,
    /// The reason for that decision.
    pub reason: Option<Box<str>>,
    /// Whether a text from the server looks like an instruction to a model.
    pub suspicious: bool,
    /// The agent's id, as a caller of the interceptor API wrote it.
    pub agent_id: Option<Box<str>>,
    /// The id of the call, as that caller wrote it.
    pub request_id: Option<Box<str>>,
    /// When that caller asked.
    pub phase: Option<McpPhase>,
}

/// When another gateway asks about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpPhase {
    /// May the request be sent?
    Before,
    /// May the agent see the response?
    After,
}

impl McpPhase {
    /// The name in the audit.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Permission to send one request or notification exactly as the chain judged it. The engine sends
/// a client's request or notification to a server only with a permit.
///
/// ```compile_fail,E0451
/// use addons::contract::{CallPermit, Frame};
///
/// fn forge(frame: Frame) -> CallPermit {
///     CallPermit { frame, passed_at: None }
/// }
/// ```
pub struct CallPermit {
    frame: Frame,
    /// The container and its standing when the chain passed the message.
    passed_at: Option<(Arc<Container>, Standing)>,
}

impl CallPermit {
    /// Called by the chain after every addon has passed the message. `None` in these cases:
    /// - The flow is not an MCP flow, or was begun and recorded for another server.
    /// - The message is a response, which needs no permit.
    pub(super) fn mint(
        subject: Option<&McpSubject>,
        container: Option<&Arc<Container>>,
        frame: Frame,
    ) -> Option<Self> {
        let is_recorded = subject?.server.as_ref() == frame.target.server();
        let passed_at = container.map(|container| (Arc::clone(container), container.standing()));
        (is_recorded && frame.kind != FrameKind::Response).then_some(Self { frame, passed_at })
    }

    /// Denies sending the message once more in these cases:
    /// - The container's security level has risen since the chain passed the message.
    /// - The container's abort latch was set since then.
    /// - No container is known.
    pub fn may_repeat(&self) -> Verdict {
        let is_no_stricter = |(container, before): &(Arc<Container>, Standing)| {
            before.and(container.standing()) == *before
        };
        if self.passed_at.as_ref().is_some_and(is_no_stricter) {
            return Ok(());
        }
        let reason = "the container's security level or abort latch changed during the call";
        let denial = Denial::new(
            Code::PolicyDeniedContinue,
            format!("Denied by policy: {reason}"),
        );
        Err(denial.with("reason", reason).rule("security level"))
    }

    /// The container whose message the chain passed; `None` if no container is known.
    pub fn container(&self) -> Option<&Arc<Container>> {
        self.passed_at.as_ref().map(|(container, _)| container)
    }

    /// The method.
    pub fn method(&self) -> &Arc<str> {
        &self.frame.method
    }

    /// Whether the message gets a response.
    pub fn is_request(&self) -> bool {
        self.frame.kind == FrameKind::Request
    }

    /// The definition of the tool that is called; `None` if the message concerns no tool.
    pub fn definition(&self) -> Option<&Arc<Definition>> {
        self.frame.definition.as_ref()
    }

    /// The params to send, unchanged; `None` if the message has none.
    pub fn params(&self) -> Option<&RawValue> {
        self.frame.params()
    }
}

impl fmt::Debug for CallPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Frame { method, target, .. } = &self.frame;
        write!(f, "CallPermit({method} to {target:?})")
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::fixtures::{container, mcp_flow};

    #[test]
    fn only_a_request_or_notification_to_the_recorded_server_gets_a_permit() {
        let web = container("web");
        let server = || McpTarget::Server("kb".into());
        let tool = || McpTarget::Tool {
            server: "kb".into(),
            name: "fetch".into(),
        };
        let request = |target| Frame::request(Direction::ToServer, target, "m", None);
        let answer = Err(RpcError {
            code: 0,
            message: "".into(),
            data: None,
        });
        let response = Frame::response(Direction::ToServer, server(), "m", answer);
        let notification = Frame::notification(Direction::ToServer, server(), "m", None);
        each_row(
            [
                (Some("kb"), request(server()), true),
                (Some("kb"), request(tool()), true),
                (Some("kb"), notification, true),
                (Some("kb"), response, false),
                (Some("db"), request(server()), false),
                (Some("db"), request(tool()), false),
                (Some("kb"), request(McpTarget::Gateway), false),
                (None, request(server()), false),
                (None, request(McpTarget::Gateway), true),
                (None, request(McpTarget::Refused), true),
            ],
            |(recorded, frame, expected)| {
                let flow = mcp_flow(&web, recorded, "m");
                let permit = CallPermit::mint(flow.mcp(), Some(&web), frame);
                assert_eq!(permit.is_some(), expected);
            },
        );
    }
}
