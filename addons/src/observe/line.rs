//! What the audit log says of one flow.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use crate::contract::{Flow, FlowId, Host, Kind, Outcome};

/// A client chooses these, and must not fill the log with one line.
const MAX_PATH: usize = 1024;
const MAX_METHOD: usize = 32;

/// What one line of the audit log says, borrowed from the flow that ended;
/// [`AuditLine::written`] is its text. It never holds a secret: no query, no header and no
/// sentence gets in.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuditLine<'a> {
    /// When the flow began.
    pub(super) ts: SystemTime,
    /// Which flow.
    pub(super) flow: FlowId,
    /// What it was.
    pub(super) kind: Kind,
    /// Whose it was.
    pub(super) container_id: Option<&'a str>,
    /// From which address.
    pub(super) client: Option<IpAddr>,
    /// The method, or the DNS record type.
    pub(super) method: Option<Excerpt<'a>>,
    /// Where to; `None` where the line stands for many.
    pub(super) host: Option<&'a Host>,
    /// At which port.
    pub(super) port: u16,
    /// The path without its query.
    pub(super) path: Option<Excerpt<'a>>,
    /// What the client got.
    pub(super) status: Option<u16>,
    /// How it ended.
    pub(super) outcome: &'static str,
    /// Why it was denied or failed.
    pub(super) code: Option<&'static str>,
    /// Who denied it.
    pub(super) addon: Option<&'static str>,
    /// The rule or entry that decided.
    pub(super) rule: Option<&'a str>,
    /// What it took.
    pub(super) cost: Cost,
    /// The address that was connected to.
    pub(super) upstream_addr: Option<SocketAddr>,
    /// The names of the credentials that were added.
    pub(super) credential: Option<&'a str>,
}

/// What a flow took: of lines that say the same otherwise, each has its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// From the client.
    pub(super) bytes_in: u64,
    /// To the client.
    pub(super) bytes_out: u64,
    /// How long it took.
    pub(super) duration_ms: u64,
}

/// What a client chose, or the beginning of it where that is very long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excerpt<'a> {
    pub(super) text: &'a str,
    /// Whether there was more.
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
        let (method, path) = (&flow.record().method, &flow.record().path);
        Self {
            ts: flow.at,
            flow: flow.id(),
            kind: flow.kind,
            container_id: flow
                .known_container()
                .map(|container| container.id.as_str()),
            client: peer,
            method: method
                .as_deref()
                .map(|method| Excerpt::of(method, MAX_METHOD)),
            host: Some(flow.host()),
            port: flow.port(),
            path: path
                .as_deref()
                .map(|path| Excerpt::of(without_query(path), MAX_PATH)),
            status: (outcome.status != 0).then_some(outcome.status),
            outcome: outcome.label(),
            code: denial.map(|denial| denial.code().as_str()),
            addon: denied_by.filter(|name| !name.is_empty()),
            rule: denied_rule.or(flow.record().rule.as_deref()),
            cost: Cost {
                bytes_in: flow.counters.bytes_in.load(Ordering::Relaxed),
                bytes_out: flow.counters.bytes_out.load(Ordering::Relaxed),
                duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
            },
            upstream_addr: flow.record().upstream,
            credential: flow.record().credential.as_deref(),
        }
    }

    /// The line for all flows of a kind that ended alike, where their differences are a flood.
    /// What a client or an upstream chooses is left out, the status included, so that there are
    /// few such lines, and they are short.
    pub(super) fn coarse(self) -> Self {
        Self {
            client: None,
            method: None,
            host: None,
            port: 0,
            path: None,
            status: None,
            // Follows from the code.
            addon: None,
            rule: None,
            upstream_addr: None,
            credential: None,
            ..self
        }
    }
}

fn without_query(path: &str) -> &str {
    let end = memchr::memchr(b'?', path.as_bytes()).unwrap_or(path.len());
    path.get(..end).unwrap_or_default()
}
