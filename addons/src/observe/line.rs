//! The facts of one flow in the audit log.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::contract::{Effect, Flow, FlowId, Host, Kind, McpPhase, McpSubject, Outcome};

/// Limit on the bytes of a path in a line; the rest is cut. A client chooses the path, and must not
/// fill the log with one line.
const MAX_PATH: usize = 1024;

/// Limit on the bytes of a method outside MCP in a line; the rest is cut. A client chooses the
/// method.
const MAX_METHOD: usize = 32;

/// Limit on the bytes of an MCP method in a line; the rest is cut. The longest known method has 40
/// bytes.
const MAX_MCP_METHOD: usize = 64;

/// Limit on the bytes of a tool's name in a line; the rest is cut. A server chooses the name.
const MAX_TOOL: usize = 128;

/// The facts of one line of the audit log, borrowed from the flow that ended.
/// [`AuditLine::encode`] encodes the line. Queries, headers and the sentences of denials are left
/// out, since they may contain secrets.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuditLine<'a> {
    /// When the flow started.
    pub(super) ts: SystemTime,
    pub(super) flow: FlowId,
    pub(super) kind: Kind,
    pub(super) container_id: Option<&'a str>,
    pub(super) client: Option<IpAddr>,
    /// The method, or the DNS record type.
    pub(super) method: Option<Excerpt<'a>>,
    /// The flow's host; `None` in a coarse line: see [`AuditLine::coarse`].
    pub(super) host: Option<&'a Host>,
    pub(super) port: u16,
    /// The path without its query. For an MCP message about a resource or a prompt, the URI without
    /// its query, or the prompt's name.
    pub(super) path: Option<Excerpt<'a>>,
    /// [`Outcome::status`]; `None` for 0.
    pub(super) status: Option<u16>,
    /// The outcome: `ok`, `denied`, `failed` or `aborted`.
    pub(super) outcome: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) addon: Option<&'static str>,
    pub(super) rule: Option<&'a str>,
    pub(super) cost: Cost,
    /// The address that was connected to.
    pub(super) upstream_addr: Option<SocketAddr>,
    /// The names of the credentials that were added.
    pub(super) credential: Option<&'a str>,
    pub(super) mcp: Option<McpLine<'a>>,
    /// The question that a person decides, or the grant that permits the flow.
    pub(super) approval: Option<&'a str>,
    /// How long the flow was held for a person's decision.
    pub(super) waited_ms: Option<u64>,
}

/// The facts of one MCP message.
#[derive(Clone, Copy, Debug)]
pub(super) struct McpLine<'a> {
    /// The server that the message went to or came from.
    pub(super) server: Option<&'a str>,
    /// The tool that was called, by the name that the server gives it.
    pub(super) tool: Option<Excerpt<'a>>,
    /// The SHA-256 of the caller's arguments.
    pub(super) args_sha256: Option<&'a str>,
    pub(super) decision: Option<&'static str>,
    /// The reason of the decision, at most 512 bytes.
    pub(super) reason: Option<&'a str>,
    /// Whether the server's text looks like an instruction to a model.
    pub(super) suspicious: bool,
    /// The agent's id, as a caller of the interceptor API wrote it.
    pub(super) agent_id: Option<&'a str>,
    /// The id of the call, as that caller wrote it.
    pub(super) request_id: Option<&'a str>,
    /// Whether that caller asked before or after the call.
    pub(super) phase: Option<&'static str>,
}

/// The cost of a flow. Lines with different costs can be folded: the folded line has the sums of
/// the bytes, and the duration of the first flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) duration_ms: u64,
}

/// Text of a client or a server, cut if it is too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excerpt<'a> {
    pub(super) text: &'a str,
    /// Whether the text was cut.
    pub(super) is_cut: bool,
}

impl<'a> Excerpt<'a> {
    fn of(text: &'a str, most: usize) -> Self {
        let end = text.floor_char_boundary(most);
        Self {
            text: text.get(..end).unwrap_or_default(),
            is_cut: end < text.len(),
        }
    }
}

impl<'a> AuditLine<'a> {
    pub(super) fn of(flow: &'a Flow, outcome: &'a Outcome) -> Self {
        let denial = outcome.denial.as_ref();
        let denied_by = denial.map(|denial| denial.addon());
        let denied_rule = denial.and_then(|denial| denial.rule_name());
        let peer = flow.client.peer.map(|peer| peer.ip().to_canonical());
        let record = flow.record();
        let approval = record.approval.as_deref();
        let (method, most) = match flow.mcp() {
            Some(subject) => (Some(&*subject.method), MAX_MCP_METHOD),
            None => (record.method.as_deref(), MAX_METHOD),
        };
        let path = record.path.as_deref().or_else(|| resource_or_prompt(flow));
        Self {
            ts: flow.at,
            flow: flow.id(),
            kind: flow.kind,
            container_id: flow
                .known_container()
                .map(|container| container.id.as_str()),
            client: peer,
            method: method.map(|method| Excerpt::of(method, most)),
            host: Some(flow.host()),
            port: flow.port(),
            path: path.map(|path| Excerpt::of(without_query(path), MAX_PATH)),
            status: (outcome.status != 0).then_some(outcome.status),
            outcome: outcome.label(),
            code: denial.map(|denial| denial.code().as_str()),
            addon: denied_by.filter(|name| !name.is_empty()),
            rule: denied_rule.or(record.rule.as_deref()),
            cost: Cost {
                bytes_in: flow.counters.bytes_in.load(Ordering::Relaxed),
                bytes_out: flow.counters.bytes_out.load(Ordering::Relaxed),
                duration_ms: millis(outcome.duration),
            },
            upstream_addr: record.upstream_addr,
            credential: record.credential.as_deref(),
            mcp: McpLine::of(flow),
            approval: approval.and_then(|approval| approval.id.as_deref()),
            waited_ms: approval.and_then(|approval| approval.waited).map(millis),
        }
    }

    /// The coarse form: equal for all flows of a container with the same kind, outcome and code. A
    /// line is held in this form if its budget has no space for another line in full. The form
    /// omits everything that a client or an upstream chooses, the status included, so that coarse
    /// lines are few and short.
    pub(super) fn coarse(self) -> Self {
        Self {
            client: None,
            method: None,
            host: None,
            port: 0,
            path: None,
            status: None,
            // Several addons can deny with the same code.
            addon: None,
            rule: None,
            upstream_addr: None,
            credential: None,
            mcp: None,
            approval: None,
            waited_ms: None,
            ..self
        }
    }
}

impl<'a> McpLine<'a> {
    fn of(flow: &'a Flow) -> Option<Self> {
        let subject = flow.mcp()?;
        let record = flow.record().mcp.as_deref();
        let tool = subject.name.as_deref().filter(|_| is_tool_call(subject));
        Some(Self {
            server: subject.server.as_deref(),
            tool: tool.map(|tool| Excerpt::of(tool, MAX_TOOL)),
            args_sha256: record.and_then(|record| record.args_sha256.as_deref()),
            decision: record.and_then(|record| record.decision.map(Effect::as_str)),
            reason: record.and_then(|record| record.reason.as_deref()),
            suspicious: record.is_some_and(|record| record.suspicious),
            agent_id: record.and_then(|record| record.agent_id.as_deref()),
            request_id: record.and_then(|record| record.request_id.as_deref()),
            phase: record.and_then(|record| record.phase.map(McpPhase::as_str)),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn is_tool_call(subject: &McpSubject) -> bool {
    &*subject.method == "tools/call"
}

/// The URI of the resource, or the prompt's name, that an MCP message is about.
fn resource_or_prompt(flow: &Flow) -> Option<&str> {
    let subject = flow.mcp().filter(|subject| !is_tool_call(subject))?;
    subject.name.as_deref()
}

fn without_query(path: &str) -> &str {
    let end = memchr::memchr(b'?', path.as_bytes()).unwrap_or(path.len());
    path.get(..end).unwrap_or_default()
}
