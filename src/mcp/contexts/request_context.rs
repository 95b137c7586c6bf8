//! What is known of one call that another gateway asked about.

use std::sync::Arc;

use addons::contract::{Effect, Executing, Handover, McpTarget};
use addons::json::ObjectText;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::caller::TraceContext;

/// The longest params that a context keeps, in bytes.
pub const MAX_PARAMS: usize = 16 << 10;
/// The memory of a context without its texts.
const FIXED_BYTES: usize = 512;

/// A tool, as a caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// By the name that the gateway exposes, or that the caller's gateway gave it.
    Named(Box<str>),
    /// A tool of Claude Code itself.
    OfClaudeCode(Box<str>),
}

impl Tool {
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::OfClaudeCode(name) => name,
        }
    }
}

/// What is known of one call that another gateway asked about.
pub struct RequestContext {
    pub request_id: Box<str>,
    pub agent_id: Option<Box<str>>,
    pub method: Arc<str>,
    /// The tool, as the caller named it.
    pub tool: Option<Tool>,
    /// The caller's own id of the tool.
    pub tool_id: Option<Box<str>>,
    /// The tool that was judged.
    pub target: Option<McpTarget>,
    /// The params that were judged, unless they are longer than [`MAX_PARAMS`].
    pub params: Option<Box<RawValue>>,
    /// Whether the request was denied, so that it has no response.
    pub is_denied: bool,
    /// The decision of `before`; `None` if `after` made the context.
    pub decision: Option<Effect>,
    pub reason: Option<Box<str>>,
    /// What the policies returned for the call.
    pub metadata: Option<Box<RawValue>>,
    /// The approval for the call at the gateway.
    pub handover: Option<Arc<Handover>>,
    /// Under which `before` let the call pass, for the policies' questions about the result.
    pub executing: Option<Executing>,
    /// The `traceparent` for messages that follow from `before`.
    pub traceparent: Option<Box<str>>,
    created_at: OffsetDateTime,
    execution: Mutex<Execution>,
}

/// The execution of the call at the gateway.
#[derive(Clone, Copy, Default)]
struct Execution {
    started: Option<OffsetDateTime>,
    ended: Option<OffsetDateTime>,
    exit_code: Option<i32>,
}

impl RequestContext {
    /// An empty context for a request.
    pub fn new(request_id: Box<str>, method: Arc<str>) -> Self {
        Self {
            request_id,
            agent_id: None,
            method,
            tool: None,
            tool_id: None,
            target: None,
            params: None,
            is_denied: false,
            decision: None,
            reason: None,
            metadata: None,
            handover: None,
            executing: None,
            traceparent: None,
            created_at: OffsetDateTime::now_utc(),
            execution: Mutex::default(),
        }
    }

    /// The trace context for the call at the gateway.
    pub fn trace(&self) -> Option<TraceContext> {
        let parent = self.traceparent.as_deref()?.to_owned();
        Some(TraceContext {
            parent,
            state: None,
        })
    }

    /// Whether a caller means the tool of this context.
    pub fn is_of(&self, tool: &Tool) -> bool {
        let is_id = matches!(tool, Tool::Named(name) if self.tool_id.as_ref() == Some(name));
        is_id || self.tool.as_ref() == Some(tool)
    }

    /// Records that the gateway sends the call.
    pub fn started(&self) {
        self.execution.lock().started = Some(OffsetDateTime::now_utc());
    }

    /// Records the end of the call, and the exit code of a server that ended during the call.
    pub fn ended(&self, exit_code: Option<i32>) {
        let mut execution = self.execution.lock();
        execution.ended.get_or_insert_with(OffsetDateTime::now_utc);
        execution.exit_code = execution.exit_code.or(exit_code);
    }

    /// The context as policies see it.
    pub fn to_json(&self) -> String {
        let execution = *self.execution.lock();
        let mut object = ObjectText::default();
        let text = |object: &mut ObjectText, key: &str, text: Option<&str>| match text {
            Some(text) => object.text(key, text),
            None => object.member(key, "null"),
        };
        let time = |at: Option<OffsetDateTime>| at.and_then(|at| at.format(&Rfc3339).ok());
        object.text("request_id", &self.request_id);
        text(&mut object, "agent_id", self.agent_id.as_deref());
        text(&mut object, "tool", self.tool.as_ref().map(Tool::name));
        text(&mut object, "decision", self.decision.map(Effect::as_str));
        text(&mut object, "reason", self.reason.as_deref());
        let created_at = time(Some(self.created_at));
        text(&mut object, "created_at", created_at.as_deref());
        let started = time(execution.started);
        text(&mut object, "execution_started", started.as_deref());
        let ended = time(execution.ended);
        text(&mut object, "execution_ended", ended.as_deref());
        let exit_code = execution.exit_code.map(|code| code.to_string());
        object.member("exit_code", exit_code.as_deref().unwrap_or("null"));
        let metadata = self
            .metadata
            .as_ref()
            .map_or("{}", |metadata| metadata.get());
        object.member("metadata", metadata);
        object.end()
    }

    /// The memory of the context, about.
    pub(super) fn bytes(&self) -> usize {
        let tool = self.tool.as_ref().map(Tool::name);
        let json = |json: &Option<Box<RawValue>>| json.as_ref().map_or(0, |one| one.get().len());
        let texts = [
            self.agent_id.as_deref(),
            tool,
            tool,
            self.tool_id.as_deref(),
            self.reason.as_deref(),
        ];
        let texts = texts.into_iter().flatten().map(str::len);
        let fixed = [
            bytes_of_id(&self.request_id),
            json(&self.metadata),
            json(&self.params),
        ];
        fixed.into_iter().chain(texts).sum()
    }
}

/// The memory of an id, which is kept three times, and of what is kept with it.
pub(super) const fn bytes_of_id(id: &str) -> usize {
    id.len().saturating_mul(3).saturating_add(FIXED_BYTES)
}
