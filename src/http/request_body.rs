//! The body of a request on its way to the upstream: buffered or streamed, counted and filtered.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use addons::contract::{BodyFilter, Counters};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::broke_off::BodyError;
use super::buffered_body::{Judged, poll_chunk};
use super::drain::{Denied, drain_rest};
use super::exchange::Exchange;
use super::filtering::Filtering;
use super::idle::IdleTracker;
use crate::upstream;

/// The source of a request's body: buffered bytes, then the client's stream.
#[derive(Default)]
struct Source {
    /// The judged part, then the bytes that were read after it.
    buffered: [Bytes; 2],
    /// The rest, which the client is still sending.
    streaming: Option<Incoming>,
}

impl Source {
    /// Polls the next bytes: first the buffered ones, then those of the stream, as [`poll_chunk`]
    /// does.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
        counters: &Counters,
        idle: &IdleTracker,
    ) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        if let Some(bytes) = self.buffered.iter_mut().find(|bytes| !bytes.is_empty()) {
            return Poll::Ready(Some(Ok(std::mem::take(bytes))));
        }
        let Some(inner) = &mut self.streaming else {
            return Poll::Ready(None);
        };
        let polled = poll_chunk(inner, context, counters, idle);
        if matches!(polled, Poll::Ready(None)) {
            // A chunked body does not say that it has ended, so `Upload` would drain it.
            self.streaming = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let streaming = self.streaming.as_ref();
        self.buffered.iter().all(Bytes::is_empty) && streaming.is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let buffered: usize = self.buffered.iter().map(Bytes::len).sum();
        match &self.streaming {
            None => SizeHint::with_exact(buffered as u64),
            Some(inner) if buffered == 0 => inner.size_hint(),
            Some(inner) => match inner.size_hint().exact() {
                Some(rest) => SizeHint::with_exact(rest + buffered as u64),
                None => SizeHint::default(),
            },
        }
    }
}

/// A request's body on its way to the upstream; most requests have none.
#[derive(Default)]
pub struct RequestBody(Option<Box<Upload>>);

impl From<RequestBody> for upstream::RequestBody {
    fn from(body: RequestBody) -> Self {
        body.0.into()
    }
}

struct Upload {
    source: Source,
    /// The filters, and the slot for their denial.
    filtering: Option<(Filtering, DenialSlot)>,
    counters: Arc<Counters>,
    idle: Arc<IdleTracker>,
    /// The client waits for `100 Continue`, which hyper sends when the body is polled first.
    is_awaited: bool,
    /// Dropped with the body. [`RequestBody::under_way`] hands out weak references to it.
    under_way: Arc<()>,
}

/// Passes a filter's denial to the exchange, which awaits the response while the upstream
/// connection polls the body.
pub type DenialSlot = Arc<Mutex<Option<Denied>>>;

impl RequestBody {
    /// A body that streams from its first byte. `expects_continue`: the client waits for `100
    /// Continue` before it sends the body.
    pub fn new(
        inner: Incoming,
        filters: Vec<Box<dyn BodyFilter>>,
        exchange: &Exchange,
        expects_continue: bool,
    ) -> Self {
        let source = Source {
            streaming: (!inner.is_end_stream()).then_some(inner),
            ..Source::default()
        };
        let mut body = Self::from_source(source, filters, exchange);
        if let Some(upload) = &mut body.0 {
            upload.is_awaited = expects_continue;
        }
        body
    }

    /// A judged body, followed by the rest of the stream if the judges needed only its beginning.
    pub fn judged(
        judged: Judged,
        rest: Incoming,
        filters: Vec<Box<dyn BodyFilter>>,
        exchange: &Exchange,
    ) -> Self {
        let source = Source {
            buffered: [judged.bytes, judged.unread],
            streaming: (!judged.complete).then_some(rest),
        };
        Self::from_source(source, filters, exchange)
    }

    /// The complete, judged body of a request that the appliance itself sends.
    pub fn whole(bytes: Bytes, filters: Vec<Box<dyn BodyFilter>>, exchange: &Exchange) -> Self {
        let bytes_in = &exchange.live.flow.counters.bytes_in;
        bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let source = Source {
            buffered: [bytes, Bytes::new()],
            streaming: None,
        };
        Self::from_source(source, filters, exchange)
    }

    fn from_source(source: Source, filters: Vec<Box<dyn BodyFilter>>, exchange: &Exchange) -> Self {
        let filtered = !filters.is_empty();
        if !filtered && source.is_end_stream() {
            return Self(None);
        }
        Self(Some(Box::new(Upload {
            source,
            filtering: filtered.then(|| (Filtering::new(filters), DenialSlot::default())),
            counters: Arc::clone(&exchange.live.flow.counters),
            idle: Arc::clone(&exchange.session.idle),
            is_awaited: false,
            under_way: Arc::default(),
        })))
    }

    /// Whether nothing is left to send; `false` as long as a filter may still add bytes.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|upload| upload.is_end_stream())
    }

    /// A reference that can be upgraded until hyper drops the body, after sending it or after an
    /// error; `None` without a body.
    pub fn under_way(&self) -> Option<Weak<()>> {
        self.0
            .as_ref()
            .map(|upload| Arc::downgrade(&upload.under_way))
    }

    /// Whether no filter changes the length, so that `Content-Length` stays valid.
    pub fn keeps_length(&self) -> bool {
        let filtering = self.0.as_ref().and_then(|upload| upload.filtering.as_ref());
        filtering.is_none_or(|(filtering, _)| filtering.keeps_length())
    }

    /// The slot for a filter's denial; `None` without filters.
    pub fn denial_slot(&self) -> Option<DenialSlot> {
        let (_, slot) = self.0.as_ref()?.filtering.as_ref()?;
        Some(Arc::clone(slot))
    }
}

/// Drains the rest of a body that the upstream did not take, since it answered early or failed. A
/// client that is still writing then reads the response instead of a reset.
impl Drop for Upload {
    fn drop(&mut self) {
        // A client that still waits for `100 Continue` sends no body. Without a runtime, the
        // process ends.
        if let Some(rest) = self.source.streaming.take()
            && !self.is_awaited
            && !rest.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            // Under way until then, so that its bytes do not count as the next request's head.
            let idle = Arc::clone(&self.idle);
            idle.begin(Instant::now());
            runtime.spawn(async move {
                drain_rest(rest).await;
                idle.end(Instant::now());
            });
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = upstream::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.is_awaited = false;
        let Self {
            source,
            filtering,
            counters,
            idle,
            ..
        } = &mut *self;
        let Some((filtering, slot)) = filtering else {
            let next = source.poll_chunk(context, counters, idle);
            let next = next.map_ok(Frame::data);
            return next.map_err(|error| BodyError::from(error).into());
        };
        while filtering.passed.is_empty() && !filtering.ended {
            let next = ready!(source.poll_chunk(context, counters, idle)).transpose();
            let verdict = match next.map_err(BodyError::from)? {
                Some(chunk) => filtering.feed(chunk),
                None => filtering.end(None),
            };
            if let Err(denial) = verdict {
                // The draining starts here, because the upstream connection owns the body. The
                // exchange takes the denial from the slot.
                let rest = std::mem::take(source).streaming;
                *slot.lock() = Some(Denied::new(denial.clone(), rest));
                return Poll::Ready(Some(Err(BodyError::Denied(denial).into())));
            }
        }
        let piece = filtering.passed.pop();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.filtering {
            Some((filtering, _)) => filtering.ended && filtering.passed.is_empty(),
            None => self.source.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.filtering {
            Some(_) => SizeHint::default(),
            None => self.source.size_hint(),
        }
    }
}
