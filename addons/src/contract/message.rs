//! Heads of requests and responses, as the chain sees them.

use http::{HeaderMap, Method, StatusCode};

use super::body::{BodyFilter, BodyJudge, MessageFilter, WholeBody};
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
    whole: Option<WholeBody>,
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
            whole: None,
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

    /// Has the body judged whole before anything of it is sent; one that is larger than `limit`
    /// is denied. Judges see it in the order they were given, before the filters do.
    pub fn judge_body(&mut self, limit: usize, judge: impl BodyJudge + 'static) {
        let whole = self.whole.get_or_insert_with(|| WholeBody {
            limit,
            judges: Vec::new(),
        });
        whole.limit = whole.limit.min(limit);
        whole.judges.push(Box::new(judge));
    }

    /// Hands what must be judged whole to the engine.
    pub fn take_whole(&mut self) -> Option<WholeBody> {
        self.whole.take()
    }
}

/// The head of a response.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    filters: Vec<Box<dyn BodyFilter>>,
    message_filters: Vec<MessageFilter>,
}

impl Response {
    /// A response without filters.
    #[must_use]
    pub fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self {
            status,
            headers,
            filters: Vec::new(),
            message_filters: Vec::new(),
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

    /// Filters what the upstream sends on a WebSocket that this response opens. `make` is called
    /// for each message and for the payload of each control frame, which is one body for the
    /// filter; a filter holds no more of a body than a few KiB. A denial closes the WebSocket.
    /// Filters see a message in the order of these calls.
    pub fn filter_messages<F: BodyFilter + 'static>(
        &mut self,
        make: impl Fn() -> F + Send + 'static,
    ) {
        self.message_filters
            .push(Box::new(move || Box::new(make())));
    }

    /// Hands the filters of messages to the engine.
    pub fn take_message_filters(&mut self) -> Vec<MessageFilter> {
        std::mem::take(&mut self.message_filters)
    }
}
