//! Responses to requests: an upstream's response with its body filtered or judged, or a denial.

use addons::contract::{Code, Denial, Host, Judges, Response as ResponseHead, names};
use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;

use super::buffered_body::judge_response;
use super::exchange::Exchange;
use super::filtering::Filtering;
use super::headers::read_response_head;
use super::reply::{self, Reply};
use super::response_body::ResponseBody;
use super::websocket;
use crate::upstream::{Upstream, not_answered};

/// The longest body, in bytes, that gets a new `Content-Length` if a decoder or filters may change
/// its length. The limit applies to the length that the upstream announced and to the new length. A
/// body that has not arrived completely gets no `Content-Length`.
const GATHERED: usize = 16 * 1024;

/// An upstream's response. It is kept in a box, since several futures hold it in turn.
pub struct UpstreamResponse {
    pub head: ResponseHead,
    rest: Rest,
}

/// The part of a response after the head: a body, or the frames of a WebSocket.
enum Rest {
    Body(Incoming, Upstream),
    Buffered(Bytes),
    Websocket(Box<websocket::Accepted>),
}

impl UpstreamResponse {
    /// Reads the head of an upstream's response. `opening` is the WebSocket handshake that the
    /// request sent, if any. Denies a 101 response that does not accept this handshake, and a body
    /// in a transfer coding other than chunked.
    pub fn read(
        mut response: Box<Response<Incoming>>,
        mut upstream: Upstream,
        opening: Option<Box<websocket::Opening>>,
        host: &Host,
    ) -> Result<Box<Self>, Denial> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let opening = opening.ok_or_else(|| {
                not_answered(host, "sent status 101 without a request to upgrade")
            })?;
            // The relay copies bytes and does not poll the HTTP connection.
            upstream.detach();
            // The head passes the chain like any other; frames follow it instead of a body.
            let (headers, accepted) = opening.accept(&mut response, host)?;
            return Ok(Box::new(Self {
                head: ResponseHead::new(response.status(), headers),
                rest: Rest::Websocket(Box::new(accepted)),
            }));
        }
        let (mut parts, body) = response.into_parts();
        upstream.note_keep_alive(&parts.headers);
        read_response_head(&mut parts).map_err(|why| not_answered(host, why))?;
        Ok(Box::new(Self {
            head: ResponseHead::new(parts.status, parts.headers),
            rest: Rest::Body(body, upstream),
        }))
    }

    /// Buffers the body and lets the judges judge it. Then keeps an HTTP/1.1 upstream connection
    /// for the next request.
    pub async fn judge(
        &mut self,
        exchange: &mut Exchange,
        judges: Judges<ResponseHead>,
    ) -> Result<(), Denial> {
        let rest = std::mem::replace(&mut self.rest, Rest::Buffered(Bytes::new()));
        let Rest::Body(body, mut upstream) = rest else {
            return Err(Denial::internal().rule("body judge of a WebSocket"));
        };
        let judging = judge_response(exchange, &mut self.head, body, &mut upstream, judges);
        let bytes = judging.await.map_err(|denial| denial.by(names::PROXY))?;
        if let Upstream::Http1(one) = upstream {
            exchange.session.keep(one);
        }
        self.rest = Rest::Buffered(bytes);
        Ok(())
    }

    /// The response for the client. Its body owns the exchange.
    #[expect(clippy::boxed_local, reason = "callers hold it in a box")]
    pub fn response(self: Box<Self>, mut exchange: Box<Exchange>) -> Response<Reply> {
        let Self { mut head, rest } = *self;
        match rest {
            Rest::Body(body, upstream) => match filtering(&body, &mut head, &exchange, false) {
                Ok(filtering) => streamed(head, body, upstream, filtering, exchange),
                Err(denial) => deny(exchange, &denial),
            },
            Rest::Websocket(accepted) => {
                let filters = head.take_message_filters();
                accepted.relay(head.headers, filters, exchange)
            }
            Rest::Buffered(bytes) => {
                exchange.live.answered(head.status.as_u16());
                upstream_reply(head, ResponseBody::buffered(bytes, exchange))
            }
        }
    }

    /// The head and the decoded body, for a reader in this process. The body owns the exchange.
    #[expect(clippy::boxed_local, reason = "callers hold it in a box")]
    pub fn into_parts(
        self: Box<Self>,
        mut exchange: Box<Exchange>,
    ) -> Result<(ResponseHead, Box<ResponseBody>), Denial> {
        let Self { mut head, rest } = *self;
        let body = match rest {
            Rest::Body(body, upstream) => {
                let filtering = filtering(&body, &mut head, &exchange, true)
                    .inspect_err(|denial| exchange.live.denied(denial))?;
                exchange.live.answered(head.status.as_u16());
                ResponseBody::new(Some((body, upstream)), filtering, exchange)
            }
            Rest::Buffered(bytes) => {
                exchange.live.answered(head.status.as_u16());
                ResponseBody::buffered(bytes, exchange)
            }
            Rest::Websocket(_) => {
                return Err(Denial::internal().rule("WebSocket for the appliance"));
            }
        };
        Ok((head, body))
    }
}

/// The response with a body that streams through its filters.
fn streamed(
    mut head: ResponseHead,
    body: Incoming,
    upstream: Upstream,
    filtering: Option<Filtering>,
    mut exchange: Box<Exchange>,
) -> Response<Reply> {
    exchange.live.answered(head.status.as_u16());
    let announced = body.size_hint().exact();
    let mut body = ResponseBody::new(Some((body, upstream)), filtering, exchange);
    if !body.keeps_length() {
        let short = announced.filter(|length| *length <= GATHERED as u64);
        match short.and_then(|_| body.gather(GATHERED)) {
            Some(length) if Some(length) == announced => {}
            Some(length) => _ = head.headers.insert(CONTENT_LENGTH, length.into()),
            None => _ = head.headers.remove(CONTENT_LENGTH),
        }
    }
    upstream_reply(head, body)
}

/// The filters of the body. `None` if there is no body (a response to HEAD, a 204, a 304) or
/// nothing to filter or decode. The length and encoding in the head then stay valid. `is_read`: a
/// reader in this process needs the body decoded.
fn filtering(
    body: &Incoming,
    head: &mut ResponseHead,
    exchange: &Exchange,
    is_read: bool,
) -> Result<Option<Filtering>, Denial> {
    if body.is_end_stream() {
        return Ok(None);
    }
    let inspection = &exchange.session.service.inspection;
    let limit = exchange.snapshot.config.proxy.limits.inspect_memory;
    let reserve = || inspection.begin(exchange.session.owner()?, limit);
    let filtering = Filtering::of_response(head, is_read, reserve)
        .inspect_err(|denial| inspection.count(denial))
        .map_err(|denial| denial.by(names::PROXY))?;
    Ok((!filtering.is_idle()).then_some(filtering))
}

/// Combines the head of an upstream's response with its filtered body.
fn upstream_reply(head: ResponseHead, body: Box<ResponseBody>) -> Response<Reply> {
    let mut response = Response::new(Reply::Upstream(body));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if head.status.canonical_reason().is_none() {
        // Otherwise hyper writes `<none>`. nginx leaves the reason empty too.
        let none = ReasonPhrase::from_static(b"");
        response.extensions_mut().insert(none);
    }
    response
}

/// Records a denial and returns it as the response to a request.
pub fn deny(mut exchange: Box<Exchange>, denial: &Denial) -> Response<Reply> {
    exchange.live.denied(denial);
    let mut response = reply::denied(denial, exchange.live.flow.id());
    let headers = response.headers_mut();
    match denial.code() {
        Code::MethodNotAllowed => {
            let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
            headers.insert(ALLOW, allow);
        }
        // WebSockets are opened over HTTP/1.1 only.
        Code::WebsocketNotAllowed => {
            headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        _ => {}
    }
    response
}
