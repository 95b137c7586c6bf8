//! What the audit log says of one flow.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use serde::{Serialize, Serializer, ser::Error};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use crate::contract::{ContainerId, Flow, FlowId, Host, Kind, Outcome};

/// A client chooses these, and must not fill the log with one line.
const MAX_PATH: usize = 1024;
const MAX_METHOD: usize = 32;

const RFC_3339: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// One line of the audit log; it serializes to the keys of the log in their order. It never
/// holds a secret: no query, no header and no sentence gets in.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AuditLine {
    /// When the flow began.
    #[serde(serialize_with = "rfc_3339")]
    pub ts: SystemTime,
    /// Which flow.
    #[serde(serialize_with = "text")]
    pub flow: FlowId,
    /// What it was.
    #[serde(serialize_with = "kind")]
    pub kind: Kind,
    /// Whose it was.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub container_id: Option<ContainerId>,
    /// From which address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// The method, or the DNS record type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Cow<'static, str>>,
    /// Where to.
    #[serde(serialize_with = "text")]
    pub host: Host,
    /// At which port.
    pub port: u16,
    /// The path without its query, cut where it is very long.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub path: Option<Arc<str>>,
    /// What the client got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: &'static str,
    /// Why it was denied or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Who denied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addon: Option<&'static str>,
    /// The rule or entry that decided.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub rule: Option<Arc<str>>,
    /// From the client.
    pub bytes_in: u64,
    /// To the client.
    pub bytes_out: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// The address that was connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_addr: Option<SocketAddr>,
    /// The names of the credentials that were added.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_text")]
    pub credential: Option<Arc<str>>,
    /// For how many flows the line stands, if for more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
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

type Content<'a> = (
    (
        Kind,
        &'a Option<ContainerId>,
        Option<IpAddr>,
        &'a Option<Cow<'static, str>>,
    ),
    (&'a Host, u16, &'a Option<Arc<str>>, Option<u16>),
    (
        &'a str,
        Option<&'a str>,
        Option<&'a str>,
        &'a Option<Arc<str>>,
    ),
    (Option<SocketAddr>, &'a Option<Arc<str>>),
);

impl Alike {
    fn content(&self) -> Content<'_> {
        let line = &self.0;
        (
            (line.kind, &line.container_id, line.client, &line.method),
            (&line.host, line.port, &line.path, line.status),
            (line.outcome, line.code, line.addon, &line.rule),
            (line.upstream_addr, &line.credential),
        )
    }
}

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Alike {}

impl Hash for Alike {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.content().hash(state);
    }
}

/// Shares the path where nothing is to be left out of it.
fn without_query(path: &Arc<str>) -> Arc<str> {
    let text = path.split('?').next().unwrap_or_default();
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

fn text<S: Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn some_text<S: Serializer>(
    value: &Option<impl std::fmt::Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn kind<S: Serializer>(value: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.as_str())
}

fn rfc_3339<S: Serializer>(value: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let at = OffsetDateTime::from(*value);
    let text = at.format(RFC_3339).map_err(S::Error::custom)?;
    serializer.serialize_str(&text)
}
