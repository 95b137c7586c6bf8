//! Bodies on their way through: counted, filtered, and never held.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use addons::contract::{BodyFilter, BodyOut, Counters, Denial};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use thiserror::Error;

use super::activity::Activity;
use super::drain::drain;
use super::live::LiveFlow;

/// Why a body broke off.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the other side broke off: {0}")]
    Peer(#[from] hyper::Error),
    #[error("denied: {0}")]
    Denied(Denial),
}

/// Runs chunks through the filters of one body.
struct Filtering {
    filters: Vec<Box<dyn BodyFilter>>,
    passed: VecDeque<Bytes>,
    ended: bool,
}

impl Filtering {
    fn new(filters: Vec<Box<dyn BodyFilter>>) -> Self {
        Self {
            filters,
            passed: VecDeque::new(),
            ended: false,
        }
    }

    fn keeps_length(&self) -> bool {
        self.filters.iter().all(|filter| filter.keeps_length())
    }

    fn chunk(&mut self, chunk: Bytes) -> Result<(), Denial> {
        self.through(0, chunk)
    }

    /// Sends bytes through the filters from `first` on.
    fn through(&mut self, first: usize, chunk: Bytes) -> Result<(), Denial> {
        let mut pieces = vec![chunk];
        for filter in self.filters.iter_mut().skip(first) {
            let mut out = BodyOut::default();
            for piece in pieces.drain(..) {
                filter.chunk(piece, &mut out)?;
            }
            pieces.extend(out.drain());
        }
        self.passed
            .extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        Ok(())
    }

    /// Ends the filters one after the other: what one held back still passes those behind it.
    fn end(&mut self, mut trailers: Option<&mut HeaderMap>) -> Result<(), Denial> {
        self.ended = true;
        for at in 0..self.filters.len() {
            let mut out = BodyOut::default();
            if let Some(filter) = self.filters.get_mut(at) {
                filter.end(&mut out, trailers.as_deref_mut())?;
            }
            let held: Vec<Bytes> = out.drain().collect();
            for piece in held {
                self.through(at + 1, piece)?;
            }
        }
        Ok(())
    }
}

/// A request's body on its way to the upstream. Trailers from a client are dropped.
pub struct RequestBody {
    inner: Option<Incoming>,
    filtering: Option<Filtering>,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    denied: Option<DenialSlot>,
}

/// Where a filter's denial is left for the exchange that waits for the answer.
pub type DenialSlot = Arc<Mutex<Option<Denial>>>;

impl RequestBody {
    pub fn new(
        inner: Incoming,
        filters: Vec<Box<dyn BodyFilter>>,
        counters: Arc<Counters>,
        activity: Arc<Activity>,
    ) -> Self {
        let filtered = !filters.is_empty();
        Self {
            inner: (!inner.is_end_stream()).then_some(inner),
            filtering: filtered.then(|| Filtering::new(filters)),
            counters,
            activity,
            denied: filtered.then(DenialSlot::default),
        }
    }

    /// Whether `Content-Length` stays true.
    pub fn keeps_length(&self) -> bool {
        self.filtering.as_ref().is_none_or(Filtering::keeps_length)
    }

    /// Where a denial by a filter will be found.
    pub fn denial_slot(&self) -> Option<DenialSlot> {
        self.denied.clone()
    }

    /// Reads until the filters let a first byte through or the body ended, so that what is
    /// denied by then never reaches the upstream.
    pub async fn prime(&mut self) -> Result<(), BodyError> {
        if self.filtering.is_none() {
            return Ok(());
        }
        std::future::poll_fn(|context| self.poll_fill(context)).await
    }

    /// Ready once something passed or all ended. What remains of a denied body is drained here,
    /// because by then the body may be in the hands of the upstream's connection.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let Some(filtering) = &mut self.filtering else {
            return Poll::Ready(Ok(()));
        };
        while filtering.passed.is_empty() && !filtering.ended {
            let frame = match &mut self.inner {
                Some(inner) => ready!(Pin::new(inner).poll_frame(context)).transpose()?,
                None => None,
            };
            let verdict = match frame.map(Frame::into_data) {
                Some(Ok(chunk)) => {
                    self.counters
                        .bytes_in
                        .fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    self.activity.moved();
                    filtering.chunk(chunk)
                }
                Some(Err(_trailers)) => Ok(()),
                None => filtering.end(None),
            };
            if let Err(denial) = verdict {
                if let Some(rest) = self.inner.take() {
                    drain(rest, &denial);
                }
                if let Some(slot) = &self.denied {
                    *slot.lock() = Some(denial.clone());
                }
                return Poll::Ready(Err(BodyError::Denied(denial)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.filtering.is_some() {
            ready!(this.poll_fill(context))?;
            let piece = this
                .filtering
                .as_mut()
                .and_then(|filtering| filtering.passed.pop_front());
            return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
        }
        loop {
            let Some(inner) = &mut this.inner else {
                return Poll::Ready(None);
            };
            let frame = ready!(Pin::new(inner).poll_frame(context)).transpose()?;
            match frame.map(Frame::into_data) {
                None => return Poll::Ready(None),
                Some(Ok(chunk)) => {
                    this.counters
                        .bytes_in
                        .fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    this.activity.moved();
                    return Poll::Ready(Some(Ok(Frame::data(chunk))));
                }
                Some(Err(_trailers)) => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.filtering {
            Some(filtering) => filtering.ended && filtering.passed.is_empty(),
            None => self.inner.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.filtering, &self.inner) {
            (Some(filtering), _) if !filtering.keeps_length() => SizeHint::default(),
            (Some(_), Some(_)) => SizeHint::default(),
            (_, Some(inner)) => inner.size_hint(),
            (_, None) => SizeHint::with_exact(0),
        }
    }
}

/// Called once when a response has been read to its end.
pub type OnEnd = Box<dyn FnOnce() + Send>;

/// A response's body on its way to the client. It carries the flow: when the body ends or is
/// dropped, the flow is finished.
pub struct ResponseBody {
    inner: Option<Incoming>,
    filtering: Option<Filtering>,
    trailers: Option<HeaderMap>,
    live: Option<Box<LiveFlow>>,
    activity: Arc<Activity>,
    on_end: Option<OnEnd>,
}

impl ResponseBody {
    pub fn new(
        inner: Incoming,
        filters: Vec<Box<dyn BodyFilter>>,
        live: Box<LiveFlow>,
        activity: Arc<Activity>,
        on_end: OnEnd,
    ) -> Self {
        let mut body = Self {
            inner: Some(inner),
            filtering: (!filters.is_empty()).then(|| Filtering::new(filters)),
            trailers: None,
            live: Some(live),
            activity,
            on_end: Some(on_end),
        };
        if body.inner.as_ref().is_some_and(Body::is_end_stream) && body.filtering.is_none() {
            body.finish();
        }
        body
    }

    /// Whether `Content-Length` stays true.
    pub fn keeps_length(&self) -> bool {
        self.filtering.as_ref().is_none_or(Filtering::keeps_length)
    }

    fn count(&self, bytes: usize) {
        self.activity.moved();
        if let Some(live) = &self.live {
            live.flow
                .counters
                .bytes_out
                .fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    fn finish(&mut self) {
        self.inner = None;
        if let Some(mut live) = self.live.take() {
            live.complete();
            self.activity.end();
        }
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }

    fn deny(&mut self, denial: Denial) -> BodyError {
        if let Some(live) = &mut self.live {
            live.denied(&denial);
        }
        BodyError::Denied(denial)
    }

    fn poll_filtered(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(filtering) = &mut self.filtering else {
                return Poll::Ready(None);
            };
            if let Some(piece) = filtering.passed.pop_front() {
                self.count(piece.len());
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if filtering.ended {
                let trailers = self.trailers.take();
                self.finish();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            let frame = match &mut self.inner {
                Some(inner) => ready!(Pin::new(inner).poll_frame(context)).transpose()?,
                None => None,
            };
            let verdict = match frame.map(Frame::into_data) {
                Some(Ok(chunk)) => filtering.chunk(chunk),
                Some(Err(frame)) => {
                    self.trailers = frame.into_trailers().ok();
                    filtering.end(self.trailers.as_mut())
                }
                None => filtering.end(None),
            };
            if let Err(denial) = verdict {
                return Poll::Ready(Some(Err(self.deny(denial))));
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.filtering.is_some() {
            return this.poll_filtered(context);
        }
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(inner).poll_frame(context)).transpose()?;
        match &frame {
            Some(frame) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.count(length);
                if this.inner.as_ref().is_some_and(Body::is_end_stream) {
                    this.finish();
                }
            }
            None => this.finish(),
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match &self.filtering {
            Some(filtering) => {
                filtering.ended && filtering.passed.is_empty() && self.trailers.is_none()
            }
            None => self.inner.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.filtering, &self.inner) {
            (None, Some(inner)) => inner.size_hint(),
            (None, None) => SizeHint::with_exact(0),
            (Some(_), _) => SizeHint::default(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if self.live.is_some() {
            self.activity.end();
        }
    }
}
