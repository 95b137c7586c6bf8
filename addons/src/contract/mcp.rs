//! MCP messages as the chain judges them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Which side sends the request that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client asks the server.
    ToServer,
    /// The server asks the client: sampling, elicitation, roots.
    ToClient,
}

/// What a frame is in JSON-RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// It has an id, and is answered.
    Request,
    /// It is not answered.
    Notification,
    /// It answers a request.
    Response,
}

/// The error of a JSON-RPC response. `data` is passed on as it was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RpcError {
    /// The number that tells errors apart.
    pub code: i64,
    /// One sentence.
    pub message: Cow<'static, str>,
    /// Whatever the sender added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// What a request is answered with.
pub type RpcOutcome = Result<Box<RawValue>, RpcError>;

/// What a frame carries, as raw JSON: number forms, key order and unknown fields survive.
#[derive(Clone, Debug)]
pub enum FrameBody {
    /// Of a request or notification; `None` where it has no `params`.
    Params(Option<Box<RawValue>>),
    /// Of a response.
    Outcome(RpcOutcome),
}

/// One JSON-RPC message between a client and one server, while it is judged.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Which side sent the request.
    pub direction: Direction,
    /// What it is in JSON-RPC.
    pub kind: FrameKind,
    /// The method; of a response, that of its request.
    pub method: Arc<str>,
    /// The tool's definition as the server lists it: for `tools/call`, its response, and what the
    /// server sends to the client while the call is under way.
    pub definition: Option<Arc<Definition>>,
    /// What it carries. What an addon changes here is what is sent.
    pub body: FrameBody,
}

impl Frame {
    /// A request.
    #[must_use]
    pub fn request(direction: Direction, method: &str, params: Option<Box<RawValue>>) -> Self {
        Self {
            direction,
            kind: FrameKind::Request,
            method: method.into(),
            definition: None,
            body: FrameBody::Params(params),
        }
    }

    /// A notification.
    #[must_use]
    pub fn notification(direction: Direction, method: &str, params: Option<Box<RawValue>>) -> Self {
        Self {
            kind: FrameKind::Notification,
            ..Self::request(direction, method, params)
        }
    }

    /// The response to a request; `direction` is the request's.
    #[must_use]
    pub fn response(direction: Direction, method: &str, outcome: RpcOutcome) -> Self {
        Self {
            kind: FrameKind::Response,
            body: FrameBody::Outcome(outcome),
            ..Self::request(direction, method, None)
        }
    }

    /// Adds the definition of the tool that is called.
    #[must_use]
    pub fn of_tool(mut self, definition: Arc<Definition>) -> Self {
        self.definition = Some(definition);
        self
    }

    /// The params of a request or notification.
    pub fn params(&self) -> Option<&RawValue> {
        match &self.body {
            FrameBody::Params(params) => params.as_deref(),
            FrameBody::Outcome(_) => None,
        }
    }
}

/// A tool as its server lists it.
#[derive(Debug)]
pub struct Definition {
    /// The server's own name for the tool.
    pub name: Arc<str>,
    /// The whole entry of `tools/list`.
    pub raw: Box<RawValue>,
    /// What the server says about the tool. Not to be trusted, but to tighten what the operator
    /// said.
    pub annotations: Annotations,
    /// How the definition compares with the one that was seen first.
    pub pin: Pin,
}

/// Hints of a tool's definition, as far as they are given. A hint of the wrong type counts as not
/// given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `readOnlyHint`: changes nothing.
    pub read_only: Option<bool>,
    /// `destructiveHint`: may destroy things.
    pub destructive: Option<bool>,
    /// `idempotentHint`: calling it again changes nothing more.
    pub idempotent: Option<bool>,
    /// `openWorldHint`: reaches what is outside the operator's hands.
    pub open_world: Option<bool>,
}

impl Annotations {
    /// Whether the tool changes nothing. Without the hint: false.
    pub fn is_read_only(&self) -> bool {
        self.read_only.unwrap_or(false)
    }

    /// Whether the tool may destroy things. Without the hint: true.
    pub fn is_destructive(&self) -> bool {
        self.destructive.unwrap_or(true)
    }

    /// Whether a repeated call changes nothing more. Without the hint: false.
    pub fn is_idempotent(&self) -> bool {
        self.idempotent.unwrap_or(false)
    }

    /// Whether the tool reaches the open world. Without the hint: true.
    pub fn is_open_world(&self) -> bool {
        self.open_world.unwrap_or(true)
    }
}

/// How a tool's definition compares with the one that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// It is the one that was seen first, or that an operator accepted.
    Accepted,
    /// Its description or schema changed since then, and an operator has not accepted it.
    Changed,
}

/// What an MCP flow is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpSubject {
    /// The server; `None` where the gateway answers by itself.
    pub server: Option<Arc<str>>,
    /// The method.
    pub method: Arc<str>,
    /// The tool or prompt by the server's own name, or the URI of a resource.
    pub name: Option<Arc<str>>,
}

/// What the audit tells of a tool call, besides server and tool.
#[derive(Clone, Debug, Default)]
pub struct McpRecord {
    /// SHA-256 of the arguments as the caller sent them, in hexadecimal.
    pub args_sha256: Option<Box<str>>,
    /// What the policy decided.
    pub decision: Option<&'static str>,
    /// Why, in the policy's words.
    pub reason: Option<Box<str>>,
    /// Something that the server sent looks like an instruction to a model.
    pub suspicious: bool,
}

/// Permission to send one message: exactly the bytes that the chain judged, to the server or
/// client that it judged them for. A mount sends nothing else.
///
/// ```compile_fail,E0451
/// use addons::contract::{CallPermit, Frame};
///
/// fn forge(frame: Frame) -> CallPermit {
///     CallPermit { frame, server: None }
/// }
/// ```
pub struct CallPermit {
    frame: Frame,
    server: Option<Arc<str>>,
}

impl CallPermit {
    /// Minted by the chain alone, after every addon passed. `None` for a flow that is no MCP
    /// flow, and for a response, which needs no permit.
    pub(super) fn mint(subject: Option<&McpSubject>, frame: Frame) -> Option<Self> {
        let server = subject?.server.clone();
        (frame.kind != FrameKind::Response).then_some(Self { frame, server })
    }

    /// The server that the message goes to or comes from.
    pub fn server(&self) -> Option<&Arc<str>> {
        self.server.as_ref()
    }

    /// The method.
    pub fn method(&self) -> &Arc<str> {
        &self.frame.method
    }

    /// Whether it is answered.
    pub fn is_request(&self) -> bool {
        self.frame.kind == FrameKind::Request
    }

    /// The definition of the tool that is called.
    pub fn definition(&self) -> Option<&Arc<Definition>> {
        self.frame.definition.as_ref()
    }

    /// The params, as they must be sent.
    pub fn params(&self) -> Option<&RawValue> {
        self.frame.params()
    }
}

impl fmt::Debug for CallPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallPermit({} to {:?})", self.frame.method, self.server)
    }
}
