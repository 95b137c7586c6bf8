//! The body of a response on its way to the client: counted and filtered while it streams.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use addons::contract::Denial;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Duration, Instant, Sleep, sleep};

use super::broke_off::BodyError;
use super::exchange::Exchange;
use super::filtering::Filtering;
use super::idle::IdleTracker;
use crate::upstream::Upstream;

/// A response's body on its way to the client. It owns the exchange: the flow ends when the body
/// ends or is dropped. Once the body has been read to its end, its HTTP/1.1 upstream connection is
/// kept for the next request on this client connection.
pub struct ResponseBody {
    /// The upstream's body and its connection; `None` for a buffered body, and after the end.
    source: Option<(Incoming, Upstream)>,
    filtering: Option<Filtering>,
    /// Boxed, since few bodies have trailers.
    trailers: Option<Box<HeaderMap>>,
    /// The error at which the body broke off, returned once the client has been sent the bytes
    /// before it. Boxed, since few bodies break off.
    broken: Option<Box<Broken>>,
    /// `None` once the body has ended.
    exchange: Option<Box<Exchange>>,
}

/// How long the connection gets to write the bytes before an error, and again as long as the client
/// does not take them. One turn of the connection's task is normally enough.
const FLUSH_TIME: Duration = Duration::from_millis(10);

/// Limit on the time for which a client that takes no bytes holds an error back. Over HTTP/2, the
/// bytes that it does not take may be those of another stream.
const MAX_FLUSH_TIME: Duration = Duration::from_secs(2);

/// An error that is held back until the bytes before it have been sent. hyper drops what it has not
/// written when a body fails.
struct Broken {
    error: BodyError,
    since: Instant,
    flushing: Pin<Box<Sleep>>,
}

impl Broken {
    fn new(error: BodyError) -> Self {
        Self {
            error,
            since: Instant::now(),
            flushing: Box::pin(sleep(FLUSH_TIME)),
        }
    }

    /// Ready once the bytes before the error have been sent, the client connection has ended (no
    /// `idle`), or [`MAX_FLUSH_TIME`] has passed.
    fn poll(&mut self, context: &mut Context<'_>, idle: Option<&IdleTracker>) -> Poll<()> {
        loop {
            ready!(self.flushing.as_mut().poll(context));
            let is_blocked = idle.is_some_and(IdleTracker::is_blocked);
            if !is_blocked || self.since.elapsed() >= MAX_FLUSH_TIME {
                return Poll::Ready(());
            }
            self.flushing.as_mut().reset(Instant::now() + FLUSH_TIME);
        }
    }
}

impl ResponseBody {
    /// A buffered and judged body, whose upstream connection is already free.
    pub fn buffered(bytes: Bytes, exchange: Box<Exchange>) -> Box<Self> {
        Self::new(None, Some(Filtering::passed(bytes)), exchange)
    }

    /// A body that streams from `source`.
    pub fn new(
        source: Option<(Incoming, Upstream)>,
        filtering: Option<Filtering>,
        exchange: Box<Exchange>,
    ) -> Box<Self> {
        let mut body = Box::new(Self {
            source,
            filtering,
            trailers: None,
            broken: None,
            exchange: Some(exchange),
        });
        if body.is_end_stream() {
            body.finish();
        }
        body
    }

    /// Whether neither a decoder nor a filter changes the length, so that `Content-Length` stays
    /// valid.
    pub fn keeps_length(&self) -> bool {
        self.filtering.as_ref().is_none_or(Filtering::keeps_length)
    }

    /// Counts bytes sent to the client. Then finishes the exchange if `last` is set, otherwise
    /// marks the connection as active.
    fn count(&mut self, bytes: usize, last: bool) {
        if let Some(exchange) = &self.exchange {
            let bytes_out = &exchange.live.flow.counters.bytes_out;
            bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
            if !last {
                exchange.session.idle.moved();
            }
        }
        if last {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let upstream = self.source.take().map(|(_, upstream)| upstream);
        if let Some(mut exchange) = self.exchange.take() {
            exchange.live.complete();
            if let Some(Upstream::Http1(one)) = upstream {
                exchange.session.keep(one);
            }
        }
    }

    fn poll_inner(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.source {
            Some((inner, upstream)) => {
                upstream.poll(context, |context| Pin::new(&mut *inner).poll_frame(context))
            }
            None => Poll::Ready(None),
        }
    }

    fn deny(&mut self, denial: Denial) -> BodyError {
        if let Some(exchange) = &mut self.exchange {
            exchange.live.denied(&denial);
        }
        BodyError::Denied(denial)
    }

    /// Filters the bytes that have already arrived, without waiting, until over `most` bytes of
    /// output are ready. Returns the length of the filtered body if the whole body had arrived, so
    /// that a short response gets a `Content-Length` and is sent in one piece.
    pub fn gather(&mut self, most: usize) -> Option<u64> {
        // No wake-up is lost: hyper polls the body again with a real waker.
        let context = &mut Context::from_waker(Waker::noop());
        let goes_on = |one: &Filtering| !one.ended && one.passed.len() <= most;
        while self.filtering.as_ref().is_some_and(goes_on) {
            match self.poll_step(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.break_off(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        if self.is_end_stream() {
            // hyper does not poll an empty body, so the exchange would not be finished otherwise.
            self.finish();
        }
        self.size_hint().exact()
    }

    fn break_off(&mut self, error: BodyError) {
        self.broken = Some(Box::new(Broken::new(error)));
    }

    /// Returns the error of a body that broke off, once [`Broken::poll`] is ready.
    fn poll_broken(&mut self, context: &mut Context<'_>) -> Poll<Option<BodyError>> {
        let exchange = self.exchange.as_ref();
        let idle = exchange.map(|exchange| &*exchange.session.idle);
        if let Some(broken) = &mut self.broken {
            ready!(broken.poll(context, idle));
        }
        Poll::Ready(self.broken.take().map(|broken| broken.error))
    }

    /// Passes one more piece through the filters. The piece is the next 64 KiB (at most) that the
    /// current frame decodes to. If nothing of that frame is left, the piece is the next frame, and
    /// after the last frame it is the end of the body.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        match self.filtering.as_mut().map(Filtering::advance) {
            Some(Ok(false)) | None => {}
            Some(Ok(true)) => return Poll::Ready(Ok(())),
            Some(Err(denial)) => return Poll::Ready(Err(self.deny(denial))),
        }
        let frame = ready!(self.poll_inner(context)).transpose()?;
        let Some(filtering) = &mut self.filtering else {
            return Poll::Ready(Ok(()));
        };
        let verdict = match frame.map(Frame::into_data) {
            Some(Ok(chunk)) => filtering.feed(chunk),
            Some(Err(frame)) => {
                self.trailers = frame.into_trailers().ok().map(Box::new);
                filtering.end(self.trailers.as_deref_mut())
            }
            None => filtering.end(None),
        };
        Poll::Ready(verdict.map_err(|denial| self.deny(denial)))
    }

    fn poll_filtered(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(filtering) = &mut self.filtering else {
                return Poll::Ready(None);
            };
            if let Some(piece) = filtering.passed.pop() {
                let last = self.is_end_stream();
                self.count(piece.len(), last);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if filtering.ended {
                let trailers = self.trailers.take();
                self.finish();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))));
            }
            if self.broken.is_some() {
                return self.poll_broken(context).map(|error| error.map(Err));
            }
            if let Err(error) = ready!(self.poll_step(context)) {
                self.break_off(error);
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
        if this.broken.is_some() {
            return this.poll_broken(context).map(|error| error.map(Err));
        }
        let frame = match ready!(this.poll_inner(context)).transpose() {
            Ok(frame) => frame,
            Err(error) => {
                this.break_off(error.into());
                return this.poll_broken(context).map(|error| error.map(Err));
            }
        };
        match &frame {
            Some(frame) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let last = this.is_end_stream() || frame.is_trailers();
                this.count(length, last);
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
            None => {
                let source = self.source.as_ref();
                source.is_none_or(|(inner, _)| inner.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.filtering, &self.source) {
            (None, Some((inner, _))) => inner.size_hint(),
            (None, None) => SizeHint::with_exact(0),
            (Some(filtering), _) if filtering.ended && self.trailers.is_none() => {
                SizeHint::with_exact(filtering.passed.len() as u64)
            }
            (Some(_), _) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use addons::contract::Code;
    use testkit::each_row_async;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_error_waits_until_the_client_takes_bytes_but_at_most_two_seconds() {
        each_row_async(
            [(0, 10), (500, 500), (10_000, 2000)],
            async |(blocked, expected)| {
                let idle = IdleTracker::new();
                idle.wrote(blocked > 0);
                let client = async {
                    sleep(Duration::from_millis(blocked)).await;
                    idle.wrote(false);
                    pending::<()>().await;
                };
                let mut broken =
                    Broken::new(BodyError::Denied(Denial::new(Code::RuleDenied, "No")));
                let began = Instant::now();
                tokio::select! {
                    () = client => {}
                    () = poll_fn(|context| broken.poll(context, Some(&idle))) => {}
                }
                let took = began.elapsed().as_millis();
                assert!(
                    (expected..expected + 50).contains(&took),
                    "{blocked} ms: {took} ms"
                );
            },
        )
        .await;
    }
}
