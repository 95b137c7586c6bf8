//! What a flow records: the bytes that it passed, facts for the audit, and notes of a dry run.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::asked::ApprovalRecord;
use super::mcp::McpRecord;

/// Bytes passed so far, counted as they stream.
#[derive(Debug, Default)]
pub struct Counters {
    /// From the client.
    pub bytes_in: AtomicU64,
    /// To the client.
    pub bytes_out: AtomicU64,
}

/// Facts for the audit that become known while the flow is under way.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The method of a request, or the record type of a DNS question. `None` for an MCP message,
    /// whose [`McpSubject`](super::McpSubject) has the method.
    pub method: Option<Cow<'static, str>>,
    /// The path in normal form, without its query.
    pub path: Option<Arc<str>>,
    /// The rule or allowlist entry that decided.
    pub rule: Option<Arc<str>>,
    /// The names of the injected credentials, separated by commas.
    pub credential: Option<Arc<str>>,
    /// The address that the dialer connected to.
    pub upstream_addr: Option<SocketAddr>,
    /// How an MCP message was judged. Boxed, since other flows have none.
    pub mcp: Option<Box<McpRecord>>,
    /// The approval that decides. Boxed, since few flows have one.
    pub approval: Option<Box<ApprovalRecord>>,
}

/// An explanation that an addon adds in a dry run, such as the rule that permits the flow.
#[derive(Clone, Debug)]
pub struct Note {
    /// The addon's name; empty for the engine.
    pub addon: &'static str,
    /// The explanation.
    pub text: String,
}
