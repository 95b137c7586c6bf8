//! The client of a request.

use std::sync::Arc;

use addons::contract::{Client, Container, Principal};
use serde_json::value::RawValue;

use super::version::Version;

/// A client of the gateway, as one legacy session or one modern request describes it.
#[derive(Debug)]
pub struct Caller {
    /// Its source address or listener.
    pub client: Client,
    /// The principal of its flows.
    pub principal: Principal,
    /// Its lease.
    pub container: Arc<Container>,
    /// The revision that it speaks.
    pub version: Version,
    /// Its declared capabilities, without `tasks`.
    pub capabilities: Arc<RawValue>,
    /// Its declared name and version.
    pub info: Option<Arc<RawValue>>,
    /// The id of its legacy session, for the policy.
    pub session: Option<Arc<str>>,
    /// The log messages that a modern request asks for.
    pub log_level: Option<LogLevel>,
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
    /// A client of the same lease and kind without a session.
    pub(super) fn like(&self) -> Self {
        Self {
            client: self.client.clone(),
            principal: self.principal.clone(),
            container: Arc::clone(&self.container),
            version: self.version,
            capabilities: Arc::clone(&self.capabilities),
            info: self.info.clone(),
            session: None,
            log_level: None,
        }
    }
}

/// Severities of log messages (RFC 5424), least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Details.
    Debug,
    /// What happens.
    Info,
    /// Normal, and worth a look.
    Notice,
    /// Not as it should be.
    Warning,
    /// Something failed.
    Error,
    /// A part failed.
    Critical,
    /// Somebody must act.
    Alert,
    /// Nothing works.
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

    /// Reads the name of a severity.
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
