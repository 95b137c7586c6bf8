//! Heads of requests and responses; DNS questions and answers.

use std::net::IpAddr;

use http::{HeaderMap, Method, StatusCode};

use super::body::{BodyFilter, MessageFilter};
use super::host::Host;
use super::judge::{BodyJudge, Judges};
use super::path::Path;

/// The head of a request, without its hop-by-hop fields. It is sent as the addons leave it.
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, as sent and in normal form.
    pub path: Path,
    /// The query as it was sent, without its `?`; `None` if there is none.
    pub query: Option<Box<str>>,
    /// The header fields.
    pub headers: HeaderMap,
    /// Whether the request opens a WebSocket.
    pub websocket: bool,
    /// The announced length of the body in bytes; `None` without `Content-Length`.
    pub content_length: Option<u64>,
    filters: Vec<Box<dyn BodyFilter>>,
    judges: Option<Judges<Self>>,
}

impl Request {
    /// A request without filters.
    #[must_use]
    pub fn new(method: Method, path: Path, query: Option<Box<str>>, headers: HeaderMap) -> Self {
        Self {
            method,
            path,
            query,
            headers,
            websocket: false,
            content_length: None,
            filters: Vec::new(),
            judges: None,
        }
    }

    /// Adds a filter of the body. Filters run in the order in which they were added.
    pub fn push_filter(&mut self, filter: impl BodyFilter + 'static) {
        self.filters.push(Box::new(filter));
    }

    /// Hands the filters to the engine.
    pub fn take_filters(&mut self) -> Vec<Box<dyn BodyFilter>> {
        std::mem::take(&mut self.filters)
    }

    /// Adds a judge of the body. The body is buffered, and none of its bytes are sent before all
    /// judges have passed it. Judges run in the order in which they were added, before the filters.
    ///
    /// At most `limit` bytes are buffered, or `limits.inspect_body_bytes` if that is less. A longer
    /// body is denied, except if its beginning is enough for all judges: see
    /// [`BodyJudge::may_judge_beginning`].
    pub fn judge_body(&mut self, limit: usize, judge: impl BodyJudge<Self> + 'static) {
        self.judges = Some(Judges::with(self.judges.take(), limit, judge));
    }

    /// Hands the judges to the engine.
    pub fn take_judges(&mut self) -> Option<Judges<Self>> {
        self.judges.take()
    }
}

/// The head of a response.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// Boxed, since the future of every request holds the head of a response, but few responses
    /// have hooks.
    hooks: Option<Box<ResponseHooks>>,
}

/// Filters and judges of a response's body.
#[derive(Default)]
struct ResponseHooks {
    filters: Vec<Box<dyn BodyFilter>>,
    judges: Option<Judges<Response>>,
    message_filters: Vec<MessageFilter>,
}

impl Response {
    /// A response without filters.
    #[must_use]
    pub fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self {
            status,
            headers,
            hooks: None,
        }
    }

    fn hooks(&mut self) -> &mut ResponseHooks {
        self.hooks.get_or_insert_default()
    }

    /// Adds a filter of the body. Filters run in the order in which they were added.
    pub fn push_filter(&mut self, filter: impl BodyFilter + 'static) {
        self.hooks().filters.push(Box::new(filter));
    }

    /// Hands the filters to the engine.
    pub fn take_filters(&mut self) -> Vec<Box<dyn BodyFilter>> {
        let hooks = self.hooks.as_mut();
        hooks.map_or_else(Vec::new, |hooks| std::mem::take(&mut hooks.filters))
    }

    /// Adds a judge of the body. The body is buffered, and the client gets none of its bytes before
    /// all judges have passed it. A body of more than `limit` bytes, or of more than
    /// `limits.inspect_body_bytes`, is denied. Judges run in the order in which they were added,
    /// after the filters.
    pub fn judge_body(&mut self, limit: usize, judge: impl BodyJudge<Self> + 'static) {
        let before = self.take_judges();
        self.hooks().judges = Some(Judges::with(before, limit, judge));
    }

    /// Hands the judges to the engine.
    pub fn take_judges(&mut self) -> Option<Judges<Self>> {
        self.hooks.as_mut()?.judges.take()
    }

    /// Adds a filter of the messages that the upstream sends on a WebSocket opened by this
    /// response. The engine calls `make` for each message and for each control frame. The new
    /// filter gets the message or the frame's payload as one body. A denial closes the WebSocket.
    /// Filters run in the order in which they were added.
    pub fn filter_messages<F: BodyFilter + 'static>(
        &mut self,
        make: impl Fn() -> F + Send + 'static,
    ) {
        let make = Box::new(move || Box::new(make()) as Box<dyn BodyFilter>);
        self.hooks().message_filters.push(make);
    }

    /// Hands the message filters to the engine.
    pub fn take_message_filters(&mut self) -> Vec<MessageFilter> {
        let hooks = self.hooks.as_mut();
        hooks.map_or_else(Vec::new, |hooks| std::mem::take(&mut hooks.message_filters))
    }
}

/// One question of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuery {
    /// The queried name.
    pub name: Host,
    /// The number of the record type: 1 for A, 28 for AAAA.
    pub record_type: u16,
}

/// The addresses of an answer. An addon removes those that the client must not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsAnswer {
    /// A and AAAA records.
    pub addresses: Vec<IpAddr>,
}
