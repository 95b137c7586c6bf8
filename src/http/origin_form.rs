//! Requests in origin form, which the proxy answers itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use addons::contract::{Code, Denial, FlowStart, Kind, McpSubject, Path, Subject, names, run_on};
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::timeout_at;

use super::broke_off::request_timed_out;
use super::destination::{Ingress, host_field};
use super::exchange::{Exchange, UnderWay};
use super::inspection::Reservation;
use super::pending_request::{drain_beside, name_of};
use super::reply::{Reply, closing_if};
use super::session::Session;
use super::streamed_body::{Pieces, StreamedBody};
use super::upstream_response::deny;
use crate::snapshot::Snapshot;

/// A request under way that the proxy answers itself. The request is recorded as a flow only if it
/// is denied. Otherwise the caller records its content as a flow, for example a DNS question or an
/// MCP message.
pub struct OriginRequest {
    pub head: Parts,
    pub session: Arc<Session>,
    /// The snapshot that was in force when the request began.
    pub snapshot: Arc<Snapshot>,
    /// The start of the flow that a denial records.
    start: FlowStart,
    body: Option<Incoming>,
    /// The memory reserved for the body.
    reservation: Option<Arc<Reservation>>,
    /// Whether the connection closes after the response.
    closes: bool,
    under_way: UnderWay,
}

impl OriginRequest {
    /// Splits the request into head and body, and counts it as under way on its connection.
    pub fn begin(session: Arc<Session>, request: Request<Incoming>) -> Self {
        let snapshot = session.service.snapshot();
        // A reload that forbids the previous request must not end this one.
        *session.latest_permission.lock() = None;
        let start = session.start(&snapshot, Kind::Http, Ingress::Plain.destination());
        let (head, body) = request.into_parts();
        Self {
            head,
            snapshot,
            body: Some(body),
            reservation: None,
            closes: session.container.is_none() || session.refusal.is_some(),
            under_way: UnderWay::begin(&session, start.started),
            session,
            start,
        }
    }

    /// Denies a request on a refused connection, a request with several `Host` fields, and an
    /// HTTP/1.1 request without `Host`.
    pub fn check(&self) -> Result<(), Denial> {
        if let Some(refusal) = &self.session.refusal {
            return Err(refusal.clone());
        }
        host_field(&self.head.headers, self.head.version).map(|_| ())
    }

    /// Sets the MCP message that the request carries, so that a denial is recorded as a flow of
    /// this message. A later call, after more of the message was read, replaces it.
    pub fn carries(&mut self, subject: McpSubject) {
        self.start.kind = Kind::Mcp;
        self.start.subject = Subject::Mcp(subject);
        self.start.entry = None;
    }

    /// The time at which the request's head was complete.
    pub fn started(&self) -> Instant {
        self.start.started
    }

    /// Reads the body, of at most `most` bytes, within `limits.inspect_timeout` of the head. A
    /// container's body is charged to the memory for buffered bodies, until
    /// [`OriginRequest::release_body`] or until the request and the stream that answers it are
    /// dropped. `limit` names the setting or rule in the denial of a longer body.
    pub async fn body(&mut self, most: usize, limit: &'static str) -> Result<Bytes, Denial> {
        let read = self.read(most, limit).await;
        read.inspect_err(|denial| self.session.service.inspection.count(denial))
    }

    /// Runs a long computation over a container's body on a blocking thread, after
    /// [`OriginRequest::body`]. Denies if the wait for the container's turn and for a free thread
    /// takes longer than 5 s. Denies as an internal error if `work` panics or no memory is reserved
    /// for the body.
    pub async fn inspect_on_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Denial> {
        let reservation = self.reservation.as_ref().ok_or_else(Denial::internal)?;
        run_on(&**reservation, work).await
    }

    /// The reservation of the body's memory, for a caller that keeps parts of the body after the
    /// request; `None` if none is held.
    pub fn reservation(&self) -> Option<Arc<Reservation>> {
        self.reservation.clone()
    }

    /// Releases the reservation of the body's memory. The caller must have dropped the body.
    pub fn release_body(&mut self) {
        self.reservation = None;
    }

    async fn read(&mut self, most: usize, limit: &'static str) -> Result<Bytes, Denial> {
        let limits = &self.snapshot.config.proxy.limits;
        let body = self.body.as_mut().ok_or_else(Denial::internal)?;
        let announced = body.size_hint();
        if announced.lower() > most as u64 {
            return Err(too_long(most, limit));
        }
        if let Some(container) = &self.session.container {
            let inspection = &self.session.service.inspection;
            let reservation = inspection.begin(container, limits.inspect_memory)?;
            let expected = announced.exact().and_then(|exact| exact.try_into().ok());
            reservation.grow(expected.unwrap_or(most))?;
            self.reservation = Some(reservation);
        }
        let deadline = self.start.started + limits.inspect_timeout;
        let reading = Limited::new(body, most).collect();
        match timeout_at(deadline.into(), reading).await {
            Ok(Ok(read)) => {
                let bytes = read.to_bytes();
                // Without an announced length, the longest one was reserved. A call that is under
                // way for long, or suspended, holds the reservation.
                if let Some(reservation) = &self.reservation {
                    reservation.fit(bytes.len());
                }
                let bytes_in = &self.start.counters.bytes_in;
                bytes_in.store(bytes.len() as u64, Ordering::Relaxed);
                Ok(bytes)
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long(most, limit)),
            Ok(Err(_)) => Err(Denial::malformed("the body broke off")),
            Err(_elapsed) => Err(request_timed_out(limits.inspect_timeout)),
        }
    }

    /// Answers with 200 and `no-store`: each request must be judged, so no cache may answer it.
    pub fn answer(self, content_type: &'static str, body: Vec<u8>) -> Response<Reply> {
        let mut response = Response::new(Bytes::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.respond(response)
    }

    /// Answers with the caller's response and `no-store`.
    pub fn respond(self, response: Response<Bytes>) -> Response<Reply> {
        let mut response = response.map(|body| Reply::Local(body.into()));
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(CACHE_CONTROL, no_store);
        closing_if(self.closes, response)
    }

    /// Answers with a body of the stream's pieces. The stream is dropped when the client
    /// disconnects.
    pub fn stream(self, head: Response<()>, pieces: Pieces) -> Response<Reply> {
        let (closes, reservation) = (self.closes, self.reservation);
        let held = pieces.map(move |piece| {
            // The closure owns the reservation, so that the stream holds the body's memory.
            let _ = &reservation;
            piece
        });
        let body = StreamedBody::new(Box::pin(held), self.under_way);
        let response = head.map(|()| Reply::Streamed(Box::new(body)));
        closing_if(closes, response)
    }

    /// Denies the request and records the denial: in a flow of the MCP message if the message is
    /// known, otherwise in a flow without a host.
    pub fn deny(mut self, denial: Denial) -> Response<Reply> {
        let denial = denial.by(names::PROXY);
        // `BodyTimeout` means that the client is too slow: the connection is closed, and the body
        // is not drained.
        let closes = self.closes || denial.code() == Code::BodyTimeout;
        if let Some(body) = self.body.take()
            && denial.code() != Code::BodyTimeout
        {
            drain_beside(body, self.head.headers.contains_key(EXPECT), &denial);
        }
        let mut exchange = Exchange::begin(self.session, self.snapshot, self.start);
        let record = exchange.live.record();
        record.method = Some(name_of(&self.head.method));
        record.path = Some(Path::parse(self.head.uri.path()).normal().into());
        closing_if(closes, deny(exchange, &denial))
    }
}

fn too_long(most: usize, limit: &'static str) -> Denial {
    let sentence = format!("Body too large: at most {most} bytes here");
    Denial::new(Code::BodyTooLargeToInspect, sentence)
        .with("limit", limit)
        .with("limit_bytes", most)
        .rule(limit)
}
