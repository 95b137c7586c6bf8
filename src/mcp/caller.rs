//! The client of a request.

use std::sync::Arc;

use addons::contract::{Client, Container, Principal};
use serde_json::value::RawValue;

use super::version::Version;

/// A client of the gateway, as described by one legacy session or one modern request.
#[derive(Debug)]
pub struct Caller {
    /// Its source address or listener.
    pub client: Client,
    /// The principal of its flows.
    pub principal: Principal,
    /// Its lease.
    pub container: Arc<Container>,
    /// The revision of its messages.
    pub version: Version,
    /// Its declared capabilities, without those that `gateway::capabilities` drops.
    pub capabilities: Arc<RawValue>,
    /// Its declared name and version.
    pub info: Option<Arc<RawValue>>,
    /// The id of its legacy session, for the policy and for the session's preferences.
    pub session: Option<Arc<str>>,
    /// The lowest severity of log messages that a modern request asks for.
    pub log_level: Option<LogLevel>,
    /// Whether this modern request declares the extension of tasks, so that its response may be a
    /// task.
    pub takes_tasks: bool,
}

/// The W3C trace context of an HTTP request.
#[derive(Clone, Debug)]
pub struct TraceContext {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`.
    pub state: Option<String>,
}

impl Caller {
    /// A client of revision 2026-07-28 without capabilities, through which the appliance itself acts
    /// on behalf of a container.
    pub fn on_behalf_of(container: Arc<Container>) -> Self {
        let none = RawValue::from_string("{}".to_owned()).unwrap_or_default();
        Self {
            client: Client {
                source: Some(container.source.clone()),
                peer: None,
            },
            principal: Principal::from(Arc::clone(&container)),
            container,
            version: Version::V2026_07_28,
            capabilities: none.into(),
            info: None,
            session: None,
            log_level: None,
            takes_tasks: false,
        }
    }

    /// Whether the client has this revision and these capabilities. Clients of a lease with equal
    /// revision and capabilities share sessions with servers and see the same lists.
    pub(super) fn is_like(&self, version: Version, capabilities: &RawValue) -> bool {
        self.version == version && self.capabilities.get() == capabilities.get()
    }

    /// A copy without the session's id and the log level. The copy does not keep the session's
    /// preferences alive.
    pub(super) fn without_session(&self) -> Self {
        Self {
            client: self.client.clone(),
            principal: self.principal.clone(),
            container: Arc::clone(&self.container),
            version: self.version,
            capabilities: Arc::clone(&self.capabilities),
            info: self.info.clone(),
            session: None,
            log_level: None,
            takes_tasks: false,
        }
    }
}

/// Severities of log messages (RFC 5424), least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Debug-level messages.
    Debug,
    /// Informational messages.
    Info,
    /// Normal but significant conditions.
    Notice,
    /// Warning conditions.
    Warning,
    /// Error conditions.
    Error,
    /// Critical conditions.
    Critical,
    /// Action must be taken immediately.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    const ALL: [(&'static str, Self); 8] = [
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("notice", Self::Notice),
        ("warning", Self::Warning),
        ("error", Self::Error),
        ("critical", Self::Critical),
        ("alert", Self::Alert),
        ("emergency", Self::Emergency),
    ];

    /// Reads the name of a severity; `None` for another name.
    pub fn parse(text: &str) -> Option<Self> {
        let named = Self::ALL.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, level)| level)
    }

    /// The name of the severity.
    pub fn as_str(self) -> &'static str {
        let named = Self::ALL.into_iter().find(|(_, level)| *level == self);
        named.map_or("info", |(name, _)| name)
    }
}
