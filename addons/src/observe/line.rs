//! What the audit log says of one flow.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use crate::contract::{ContainerId, Flow, FlowId, Host, Kind, Outcome};

/// A client chooses these, and must not fill the log with one line.
const MAX_PATH: usize = 1024;
const MAX_METHOD: usize = 32;

/// One line of the audit log; [`AuditLine::write_json`] says it. It never holds a secret: no
/// query, no header and no sentence gets in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditLine {
    /// When the flow began.
    pub ts: SystemTime,
    /// Which flow.
    pub flow: FlowId,
    /// What it was.
    pub kind: Kind,
    /// Whose it was.
    pub container_id: Option<ContainerId>,
    /// From which address.
    pub client: Option<IpAddr>,
    /// The method, or the DNS record type.
    pub method: Option<Cow<'static, str>>,
    /// Where to.
    pub host: Host,
    /// At which port.
    pub port: u16,
    /// The path without its query, cut where it is very long.
    pub path: Option<Arc<str>>,
    /// What the client got.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: &'static str,
    /// Why it was denied or failed.
    pub code: Option<&'static str>,
    /// Who denied it.
    pub addon: Option<&'static str>,
    /// The rule or entry that decided.
    pub rule: Option<Arc<str>>,
    /// From the client.
    pub bytes_in: u64,
    /// To the client.
    pub bytes_out: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// The address that was connected to.
    pub upstream_addr: Option<SocketAddr>,
    /// The names of the credentials that were added.
    pub credential: Option<Arc<str>>,
    /// For how many flows the line stands, if for more than one.
    pub count: Option<u64>,
}

impl AuditLine {
    pub(super) fn of(flow: &Flow, outcome: &Outcome) -> Self {
        let denial = outcome.denial.as_ref();
        let denied_by = denial.map(|denial| denial.addon());
        let denied_rule = denial.and_then(|denial| denial.rule_name()).map(Arc::from);
        let peer = flow.client.peer.map(|peer| peer.ip().to_canonical());
        Self {
            ts: flow.at,
            flow: flow.id,
            kind: flow.kind,
            container_id: flow.known_container().map(|container| container.id.clone()),
            client: peer,
            method: flow.record.method.as_ref().map(|method| {
                let cut = cut(method, MAX_METHOD);
                cut.map_or_else(|| method.clone(), Cow::Owned)
            }),
            host: flow.host.clone(),
            port: flow.port,
            path: flow.record.path.as_ref().map(without_query),
            status: (outcome.status != 0).then_some(outcome.status),
            outcome: outcome.label(),
            code: denial.map(|denial| denial.code().as_str()),
            addon: denied_by.filter(|name| !name.is_empty()),
            rule: denied_rule.or_else(|| flow.record.rule.clone()),
            bytes_in: flow.counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: flow.counters.bytes_out.load(Ordering::Relaxed),
            duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
            upstream_addr: flow.record.upstream,
            credential: flow.record.credential.clone(),
            count: None,
        }
    }

    /// The line for all flows that ended alike, where even their difference is a flood.
    pub(super) fn coarse(mut self) -> Self {
        self.method = None;
        self.path = None;
        self.rule = None;
        self.upstream_addr = None;
        self.client = None;
        self.port = 0;
        self.host = Host::Name("*".into());
        self
    }
}

/// Lines by what they say, whichever flow they say it of.
pub(super) struct Alike(pub(super) Arc<AuditLine>);

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        a.path == b.path
            && a.method == b.method
            && a.host == b.host
            && (a.port, a.client, a.status) == (b.port, b.client, b.status)
            && (a.outcome, a.code, a.addon) == (b.outcome, b.code, b.addon)
            && (a.upstream_addr, &a.rule) == (b.upstream_addr, &b.rule)
            && (a.kind, &a.container_id, &a.credential) == (b.kind, &b.container_id, &b.credential)
    }
}

impl Eq for Alike {}

impl Hash for Alike {
    /// All that a client can choose, so that it cannot make many lines that share a hash; the
    /// rest is left to the comparison.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let line = &self.0;
        (&line.path, &line.method, &line.host).hash(state);
        (line.port, line.client, line.status).hash(state);
    }
}

/// Shares the path where nothing is to be left out of it.
fn without_query(path: &Arc<str>) -> Arc<str> {
    let end = memchr::memchr(b'?', path.as_bytes()).unwrap_or(path.len());
    let text = path.get(..end).unwrap_or_default();
    match cut(text, MAX_PATH) {
        Some(cut) => cut.into(),
        None if text.len() < path.len() => text.into(),
        None => Arc::clone(path),
    }
}

/// The text cut short, where it is too long.
fn cut(text: &str, most: usize) -> Option<String> {
    if text.len() <= most {
        return None;
    }
    let end = text.floor_char_boundary(most);
    Some(format!("{}…", text.get(..end).unwrap_or_default()))
}
