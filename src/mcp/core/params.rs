//! Translates the params of a client's message to the server's era, and adds the gateway's progress
//! token and the client's trace context.

use std::sync::atomic::{AtomicU64, Ordering};

use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;

use super::super::caller::TraceContext;
use super::super::message::is_progress_token;
use super::{Caller, Era, LogLevel, Version};

// Keys of `_meta` that only the modern era has.
const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The key of `_meta` that names the subscription of a notification.
pub(super) const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The member that holds a progress token.
pub(super) const PROGRESS_TOKEN: &str = "progressToken";
/// The member that asks for a task (2025-11-25). The gateway removes this member and the capability
/// `tasks`, so servers make no tasks.
pub(super) const TASK: &str = "task";
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// A change of a member: its key, and its new JSON text or `None` to remove it.
pub(super) type Change<'a> = (&'a str, Option<&'a str>);

/// Params as the server gets them.
pub(super) struct ServerParams {
    pub params: Option<Box<RawValue>>,
    pub progress: Option<Progress>,
}

/// A progress token, and the gateway's token that replaces it.
pub(super) struct Progress {
    /// The gateway's token, which the receiver of the request gets.
    pub replacement: u64,
    /// The token of the sender of the request, as JSON.
    pub original: Box<str>,
}

/// The server and the client that params are translated for.
pub(super) struct Destination<'a> {
    pub caller: &'a Caller,
    /// The revision of the session with the server.
    pub version: Version,
    /// The log level to send to a modern server.
    pub log_level: Option<LogLevel>,
    /// The trace context of the client's request.
    pub trace: Option<&'a TraceContext>,
}

impl Destination<'_> {
    /// Translates the params of a request or notification. Unchanged members keep the client's
    /// text. `None` if the client's params or their `_meta` are not an object.
    pub fn params(
        &self,
        params: Option<&RawValue>,
        changes: &[Change<'_>],
        is_request: bool,
    ) -> Option<ServerParams> {
        let members = match params {
            Some(params) => Members::read(params).ok()?,
            None => Members::default(),
        };
        let old_meta = members.get("_meta");
        let meta = old_meta
            .map_or(Ok(Members::default()), Members::parse)
            .ok()?;
        let progress = is_request.then(|| Progress::of(&meta)).flatten();
        let new_meta = self.meta(&meta, progress.as_ref(), is_request);
        let new_meta = match &new_meta {
            Some(changed) => Some(&**changed).filter(|changed| *changed != "{}"),
            None => old_meta,
        };
        let is_change = |(key, value): &Change<'_>| members.get(key) != *value;
        if !changes.iter().any(is_change) && new_meta == old_meta {
            let params = params.map(ToOwned::to_owned);
            return Some(ServerParams { params, progress });
        }
        let meta = [("_meta", new_meta)];
        let text = edit(&members, &[changes, &meta].concat());
        let params = match params.is_none() && text == "{}" {
            true => None,
            false => Some(RawValue::from_string(text).ok()?),
        };
        Some(ServerParams { params, progress })
    }

    /// The changed JSON text of `_meta`; `None` if nothing changes.
    fn meta(
        &self,
        meta: &Members<'_>,
        progress: Option<&Progress>,
        is_request: bool,
    ) -> Option<String> {
        let caller = self.caller;
        let modern = is_request && self.version.era() == Era::Modern;
        let token = progress.map(|progress| progress.replacement.to_string());
        let version = format!("\"{}\"", self.version.as_str());
        let level = self
            .log_level
            .map(|level| format!("\"{}\"", level.as_str()));
        let info = caller.info.as_deref().map(RawValue::get);
        fn only(modern: bool, value: Option<&str>) -> Option<&str> {
            value.filter(|_| modern)
        }
        let mut changes: Vec<Change<'_>> = vec![
            (PROTOCOL_VERSION, only(modern, Some(&version))),
            (CLIENT_INFO, only(modern, info)),
            (
                CLIENT_CAPABILITIES,
                only(modern, Some(caller.capabilities.get())),
            ),
            (LOG_LEVEL, only(modern, level.as_deref())),
            (SUBSCRIPTION_ID, None),
        ];
        if is_request {
            changes.push((PROGRESS_TOKEN, token.as_deref()));
        }
        let trace = self.trace.filter(|_| meta.get(TRACEPARENT).is_none());
        let quoted = trace.map(|trace| (quote(&trace.parent), trace.state.as_deref().map(quote)));
        if let Some((parent, state)) = &quoted {
            changes.push((TRACEPARENT, Some(parent)));
            changes.push((TRACESTATE, state.as_deref()));
        }
        let is_change = |(key, value): &Change<'_>| meta.get(key) != *value;
        changes.iter().any(is_change).then(|| edit(meta, &changes))
    }
}

impl Progress {
    /// Reads the token in `_meta`, and allocates a token of the gateway to replace it. `None` if
    /// `_meta` has no valid token.
    pub fn of(meta: &Members<'_>) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let original = meta.get(PROGRESS_TOKEN)?;
        is_progress_token(original).then(|| Self {
            replacement: NEXT.fetch_add(1, Ordering::Relaxed),
            original: original.into(),
        })
    }
}

/// The JSON text of the object with some members changed. New members are added at the end.
pub(super) fn edit(members: &Members<'_>, changes: &[Change<'_>]) -> String {
    let mut object = ObjectText::default();
    for (key, value) in members.iter() {
        let change = changes.iter().find(|(changed, _)| *changed == key);
        if let Some(value) = change.map_or(Some(value), |(_, value)| *value) {
            object.member(key, value);
        }
    }
    for (key, value) in changes {
        if let (Some(value), None) = (value, members.get(key)) {
            object.member(key, value);
        }
    }
    object.end()
}

/// The JSON text of a string.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
