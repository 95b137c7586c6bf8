//! Heads of requests and responses, as the chain sees them.

use http::{HeaderMap, Method, StatusCode};

use super::body::{BodyFilter, MessageFilter};
use super::judge::{BodyJudge, Judges};
use super::path::Path;

/// The head of a request. Hop-by-hop fields are gone already; what an addon changes is what
/// is sent.
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, with the one reading that counts.
    pub path: Path,
    /// The query as it was sent, without its `?`.
    pub query: Option<Box<str>>,
    /// The header fields.
    pub headers: HeaderMap,
    /// Whether this asks for a WebSocket.
    pub websocket: bool,
    /// How long the body says it is; `Some(0)` where there is none.
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

    /// Lets a filter see the body. Filters see it in the order they were pushed.
    pub fn push_filter(&mut self, filter: impl BodyFilter + 'static) {
        self.filters.push(Box::new(filter));
    }

    /// Hands the filters to the engine.
    pub fn take_filters(&mut self) -> Vec<Box<dyn BodyFilter>> {
        std::mem::take(&mut self.filters)
    }

    /// Has the body buffered and judged before anything of it is sent. One of more than `limit`
    /// bytes, or of more than `limits.inspect_body_bytes`, is denied. Judges see it in the order
    /// in which they were added, before the filters do.
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
    /// Boxed, since the future of every request holds a head and few have any.
    hooks: Option<Box<ResponseHooks>>,
}

/// What addons want to do to a response's body.
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

    /// Lets a filter see the body. Filters see it in the order they were pushed.
    pub fn push_filter(&mut self, filter: impl BodyFilter + 'static) {
        self.hooks().filters.push(Box::new(filter));
    }

    /// Hands the filters to the engine.
    pub fn take_filters(&mut self) -> Vec<Box<dyn BodyFilter>> {
        let hooks = self.hooks.as_mut();
        hooks.map_or_else(Vec::new, |hooks| std::mem::take(&mut hooks.filters))
    }

    /// Has the body buffered and judged before the client sees its first byte. One of more than
    /// `limit` bytes, or of more than `limits.inspect_body_bytes`, is denied. Judges see it after
    /// the filters.
    pub fn judge_body(&mut self, limit: usize, judge: impl BodyJudge<Self> + 'static) {
        let before = self.take_judges();
        self.hooks().judges = Some(Judges::with(before, limit, judge));
    }

    /// Hands the judges to the engine.
    pub fn take_judges(&mut self) -> Option<Judges<Self>> {
        self.hooks.as_mut()?.judges.take()
    }

    /// Filters what the upstream sends on a WebSocket that this response opens. `make` is called
    /// for each message and for the payload of each control frame, which is one body for the
    /// filter; a filter holds no more of a body than a few KiB. A denial closes the WebSocket.
    /// Filters see a message in the order of these calls.
    pub fn filter_messages<F: BodyFilter + 'static>(
        &mut self,
        make: impl Fn() -> F + Send + 'static,
    ) {
        let make = Box::new(move || Box::new(make()) as Box<dyn BodyFilter>);
        self.hooks().message_filters.push(make);
    }

    /// Hands the filters of messages to the engine.
    pub fn take_message_filters(&mut self) -> Vec<MessageFilter> {
        let hooks = self.hooks.as_mut();
        hooks.map_or_else(Vec::new, |hooks| std::mem::take(&mut hooks.message_filters))
    }
}
