//! Buffers bodies for their judges, within the limits of the configuration. A judge, which an addon
//! adds, decides about a body before the body is sent.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use addons::contract::{
    Buffered, Code, Counters, Denial, Judges, Request as Head, Response as ResponseHead, Stage,
    Verdict, run_on,
};
use addons::decode::{Decoder, Side};
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::broke_off::request_timed_out;
use super::exchange::Exchange;
use super::filtering::Filtering;
use super::idle::IdleTracker;
use super::inspection::Reservation;
use crate::upstream::{Upstream, not_answered};

/// Initial capacity of a buffer in bytes. It is larger for a longer first piece, and smaller for a
/// shorter announced length or limit.
const FIRST_CAPACITY: usize = 4 * 1024;

/// A request's body that its judges have permitted.
pub struct Judged {
    /// The bytes that the judges returned. They own their reservation.
    pub bytes: Bytes,
    /// Bytes that were read but did not fit into the buffer; they are not judged.
    pub unread: Bytes,
    /// Whether the body has ended.
    pub complete: bool,
}

/// Buffers a request's body, or as much of it as its judges need, and lets them judge it.
/// Afterwards the head describes the body that is sent: decoded, with its length if that is known.
pub async fn judge_request(
    exchange: &mut Exchange,
    head: &mut Head,
    body: &mut Incoming,
    mut judges: Judges<Head>,
) -> Result<Judged, Denial> {
    let inspection = Arc::clone(&exchange.session.service.inspection);
    let read = match Decoder::of(Side::Request, &head.headers) {
        Ok(decoder) => read_request(exchange, decoder, body, &mut judges).await,
        Err(denial) => Err(denial),
    };
    let (mut judged, reservation) = read.map_err(|denial| {
        inspection.count(&denial);
        judges.for_client(denial)
    })?;
    let before = judged.bytes.len();
    let bytes = judge(exchange, head, judges, judged.bytes, &reservation).await?;
    head.headers.remove(CONTENT_ENCODING);
    if judged.complete {
        if !bytes.is_empty() || head.headers.contains_key(CONTENT_LENGTH) {
            let length = HeaderValue::from(bytes.len());
            head.headers.insert(CONTENT_LENGTH, length);
        }
    } else if bytes.len() != before {
        head.headers.remove(CONTENT_LENGTH);
    }
    judged.bytes = reservation.keep(bytes);
    Ok(judged)
}

/// Judges a complete request body of the appliance itself. Returns the bytes that the judges
/// returned, and sets `Content-Length` to their number.
pub async fn judge_whole(
    exchange: &mut Exchange,
    head: &mut Head,
    body: &Bytes,
    judges: Judges<Head>,
) -> Result<Bytes, Denial> {
    let mut buffer = Buffer::begin(exchange, judges.limit())?;
    buffer.announce(body.len() as u64)?;
    buffer.push(body)?;
    let (bytes, reservation) = buffer.finish();
    let bytes = judge(exchange, head, judges, bytes, &reservation).await?;
    head.headers.insert(CONTENT_LENGTH, bytes.len().into());
    Ok(reservation.keep(bytes))
}

/// Runs the judges over a buffered body. The idle timeout of the client connection is suspended
/// meanwhile.
async fn judge<H>(
    exchange: &mut Exchange,
    head: &mut H,
    judges: Judges<H>,
    bytes: Bytes,
    reservation: &Arc<Reservation>,
) -> Result<Bytes, Denial> {
    let values = exchange.snapshot.config.proxy.limits.inspect_values;
    let given = Buffered::new(bytes, values, Arc::clone(reservation) as _);
    let live = &mut exchange.live;
    let judging = live.chain.judge(&mut live.flow, head, judges, given);
    let session = &exchange.session;
    let judged = session.idle.held(judging).await;
    judged.inspect_err(|denial| session.service.inspection.count(denial))
}

async fn read_request(
    exchange: &Exchange,
    decoder: Option<Decoder>,
    body: &mut Incoming,
    judges: &mut Judges<Head>,
) -> Result<(Judged, Arc<Reservation>), Denial> {
    let mut buffer = Buffer::begin(exchange, judges.limit())?;
    if let Some(decoder) = &decoder {
        buffer.reservation.grow(decoder.memory())?;
    }
    if judges.may_judge_beginning() {
        // A judge that needs only the beginning parses while bytes arrive, and may keep a copy of
        // all of them. So each byte is charged twice.
        buffer.charge = 2;
    } else {
        buffer.announce(body.size_hint().lower())?;
    }
    let limits = &exchange.snapshot.config.proxy.limits;
    let deadline = Instant::from_std(exchange.live.flow.started) + limits.inspect_timeout;
    let reading = async {
        match decoder {
            Some(decoder) => decoded(exchange, body, decoder, &mut buffer).await,
            None => plain(exchange, body, &mut buffer, judges).await,
        }
    };
    let read = timeout_at(deadline, reading).await;
    let unread = read.map_err(|_elapsed| request_timed_out(limits.inspect_timeout))??;
    let (bytes, reservation) = buffer.finish();
    let judged = Judged {
        bytes,
        complete: unread.is_none(),
        unread: unread.unwrap_or_default(),
    };
    Ok((judged, reservation))
}

/// Reads until the judges have enough. Returns the bytes, if any, that were read but did not fit
/// into the buffer. Returns `None` if the body ended first. Denies a body that exceeds the limit
/// before the judges have enough.
async fn plain(
    exchange: &Exchange,
    body: &mut Incoming,
    buffer: &mut Buffer,
    judges: &mut Judges<Head>,
) -> Result<Option<Bytes>, Denial> {
    while let Some(mut chunk) = next_chunk(exchange, body).await? {
        let fits = buffer.room().min(chunk.len());
        buffer.push(&chunk.split_to(fits))?;
        if judges.have_enough(&buffer.bytes)? {
            return Ok(Some(chunk));
        }
        if !chunk.is_empty() {
            return Err(buffer.too_large());
        }
    }
    Ok(None)
}

/// Reads to the end, then decodes on a blocking thread: even a few encoded bytes can keep a decoder
/// busy long enough to delay other connections. Returns `None`, since all bytes are judged.
async fn decoded(
    exchange: &Exchange,
    body: &mut Incoming,
    decoder: Decoder,
    buffer: &mut Buffer,
) -> Result<Option<Bytes>, Denial> {
    while let Some(chunk) = next_chunk(exchange, body).await? {
        buffer.push(&chunk)?;
    }
    let mut plain = buffer.another();
    let encoded = Bytes::from(std::mem::replace(buffer, plain.another()).bytes);
    let decode = move || decode(decoder, encoded, &mut plain).map(|()| plain);
    *buffer = run_on(&*Arc::clone(&buffer.reservation), decode).await??;
    Ok(None)
}

fn decode(mut decoder: Decoder, encoded: Bytes, plain: &mut Buffer) -> Verdict {
    decoder.feed(encoded);
    // Without room, `next(0)` still returns one byte if there is one. `push` then denies the body
    // as too large.
    while let Some(piece) = decoder.next(plain.room())? {
        plain.push(&piece)?;
    }
    decoder.end()
}

/// Polls the next bytes of a client's body; ready with `None` at the end. Drops trailers. Counts
/// the bytes and marks the connection as active.
pub fn poll_chunk(
    body: &mut Incoming,
    context: &mut Context<'_>,
    counters: &Counters,
    idle: &IdleTracker,
) -> Poll<Option<Result<Bytes, hyper::Error>>> {
    loop {
        let frame = ready!(Pin::new(&mut *body).poll_frame(context)?);
        match frame.map(Frame::into_data) {
            None => return Poll::Ready(None),
            Some(Ok(chunk)) => {
                let length = chunk.len() as u64;
                counters.bytes_in.fetch_add(length, Ordering::Relaxed);
                idle.moved();
                return Poll::Ready(Some(Ok(chunk)));
            }
            Some(Err(_trailers)) => {}
        }
    }
}

/// Returns the next bytes from the client, as [`poll_chunk`] does.
async fn next_chunk(exchange: &Exchange, body: &mut Incoming) -> Result<Option<Bytes>, Denial> {
    let (counters, idle) = (&exchange.live.flow.counters, &exchange.session.idle);
    let chunk = poll_fn(|context| poll_chunk(body, context, counters, idle)).await;
    let chunk = chunk.transpose();
    chunk.map_err(|_| Denial::malformed("the body broke off"))
}

/// Buffers a response's decoded and filtered body, and lets its judges judge it. Trailers are
/// dropped.
pub async fn judge_response(
    exchange: &mut Exchange,
    head: &mut ResponseHead,
    body: Incoming,
    upstream: &mut Upstream,
    judges: Judges<ResponseHead>,
) -> Result<Bytes, Denial> {
    let inspection = Arc::clone(&exchange.session.service.inspection);
    let read = read_response(exchange, head, body, upstream, judges.limit()).await;
    let (bytes, reservation) = read.map_err(|denial| {
        inspection.count(&denial);
        judges.for_client(denial)
    })?;
    let bytes = judge(exchange, head, judges, bytes, &reservation).await?;
    head.headers.insert(CONTENT_LENGTH, bytes.len().into());
    Ok(reservation.keep(bytes))
}

async fn read_response(
    exchange: &Exchange,
    head: &mut ResponseHead,
    mut body: Incoming,
    upstream: &mut Upstream,
    limit: usize,
) -> Result<(Bytes, Arc<Reservation>), Denial> {
    let mut buffer = Buffer::begin(exchange, limit)?;
    let reserve = || Ok(Arc::clone(&buffer.reservation));
    let mut filtering = Filtering::of_response(head, true, reserve)?;
    buffer.announce(body.size_hint().lower())?;
    let live = &exchange.live;
    let limits = &exchange.snapshot.config.proxy.limits;
    let _waiting = exchange.session.idle.wait();
    let reading = async {
        while !filtering.ended {
            let frame = poll_fn(|context| {
                upstream.poll(context, |context| Pin::new(&mut body).poll_frame(context))
            });
            let frame = frame.await.transpose();
            let why = "closed the connection within the response body";
            let frame = frame.map_err(|_| not_answered(live.flow.host(), why))?;
            match frame.map(Frame::into_data) {
                Some(Ok(chunk)) => filtering.feed(chunk)?,
                Some(Err(_)) | None => filtering.end(None)?,
            }
            while buffer.take(&mut filtering)? || filtering.advance()? {
                yield_now().await;
            }
        }
        Ok(())
    };
    match timeout_at(Instant::now() + limits.inspect_timeout, reading).await {
        Ok(read) => read.map(|()| buffer.finish()),
        Err(_elapsed) => {
            exchange.session.service.inspection.count_timeout();
            let seconds = limits.inspect_timeout.as_secs();
            let sentence = format!(
                "The response body of {} was not complete within {seconds} seconds",
                live.flow.host()
            );
            Err(Denial::new(Code::UpstreamTimeout, sentence).at(Stage::Response))
        }
    }
}

/// The bytes of a body that have arrived. Memory is reserved before it is allocated.
struct Buffer {
    bytes: Vec<u8>,
    /// Limit on the length of `bytes`.
    limit: usize,
    /// Whether the limit is `limits.inspect_body_bytes`, and not a judge's own.
    is_configured: bool,
    /// Bytes reserved for each byte of capacity.
    charge: usize,
    /// The announced length in bytes, if any.
    announced: Option<usize>,
    reservation: Arc<Reservation>,
}

impl Buffer {
    /// Makes a buffer for `most` bytes, or for `limits.inspect_body_bytes` if that is less. Denies
    /// as [`Inspection::begin`](super::inspection::Inspection::begin) does.
    fn begin(exchange: &Exchange, most: usize) -> Result<Self, Denial> {
        let limits = &exchange.snapshot.config.proxy.limits;
        let inspection = &exchange.session.service.inspection;
        let container = exchange.session.owner()?;
        Ok(Self {
            bytes: Vec::new(),
            limit: most.min(limits.inspect_body_bytes),
            is_configured: limits.inspect_body_bytes <= most,
            charge: 1,
            announced: None,
            reservation: inspection.begin(container, limits.inspect_memory)?,
        })
    }

    /// An empty buffer with the same limit and the same reservation.
    fn another(&self) -> Self {
        Self {
            bytes: Vec::new(),
            announced: None,
            reservation: Arc::clone(&self.reservation),
            ..*self
        }
    }

    /// Denies a body whose announced length exceeds the limit, even if the body is encoded: its
    /// decoded form is normally longer.
    fn announce(&mut self, announced: u64) -> Verdict {
        let announced = usize::try_from(announced).unwrap_or(usize::MAX);
        if announced > self.limit {
            return Err(self.too_large());
        }
        self.announced = (announced > 0).then_some(announced);
        Ok(())
    }

    fn room(&self) -> usize {
        self.limit - self.bytes.len()
    }

    fn push(&mut self, piece: &[u8]) -> Verdict {
        if piece.len() > self.room() {
            return Err(self.too_large());
        }
        let needed = self.bytes.len() + piece.len();
        let capacity = self.bytes.capacity();
        if needed > capacity {
            // Doubled, up to the announced length. The bound is the limit if no length is
            // announced, or if a decoded body is longer than announced.
            let doubled = needed.max(2 * capacity).max(FIRST_CAPACITY);
            let announced = self.announced.filter(|announced| *announced >= needed);
            let wanted = doubled.min(announced.unwrap_or(self.limit));
            self.reservation.grow(self.charge * (wanted - capacity))?;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Takes the bytes that passed the filters. Returns whether there were any.
    fn take(&mut self, filtering: &mut Filtering) -> Result<bool, Denial> {
        let mut taken = false;
        while let Some(piece) = filtering.passed.pop() {
            self.push(&piece)?;
            taken = true;
        }
        Ok(taken)
    }

    fn finish(self) -> (Bytes, Arc<Reservation>) {
        // A boxed slice has no spare capacity, so that the bytes use no more memory than
        // `Reservation::keep` leaves reserved for them.
        (self.bytes.into_boxed_slice().into(), self.reservation)
    }

    fn too_large(&self) -> Denial {
        let sentence = format!(
            "Body too large to inspect: at most {} bytes here",
            self.limit
        );
        let denial = Denial::new(Code::BodyTooLargeToInspect, sentence)
            .with("limit", "inspect_body_bytes")
            .with("limit_bytes", self.limit);
        if !self.is_configured {
            return denial;
        }
        denial.rule("limits.inspect_body_bytes")
    }
}
