//! Sends a request to the upstream: its form for each protocol, and the response timeout.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use addons::contract::{
    Code, Denial, Endpoint, Flow, Request as Head, Scheme, Verdict, fold_address, names,
};
use futures_util::future::Either;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::{Instant, sleep_until};

use super::exchange::Exchange;
use super::websocket;
use crate::upstream::{self, Http1, Upstream};

/// Returns the request for an HTTP/1.1 upstream; [`transmit`] converts it if the upstream speaks
/// HTTP/2. Takes the method and the header fields out of `head`. `received` is the target that the
/// client sent; it is reused if no addon changed it. Denies a changed target that is not valid.
pub fn outgoing(
    head: &mut Head,
    body: upstream::RequestBody,
    received: Option<PathAndQuery>,
) -> Result<Request<upstream::RequestBody>, Denial> {
    let path = head.path.sent();
    let query = head.query.as_deref();
    let is_same = |received: &PathAndQuery| received.path() == path && received.query() == query;
    let target = match (received.filter(is_same), query) {
        (Some(received), _) => Ok(received),
        (None, Some(query)) => format!("{path}?{query}").parse::<PathAndQuery>(),
        (None, None) => path.parse::<PathAndQuery>(),
    };
    let target = target.map_err(|_| Denial::malformed("the path cannot be sent"))?;
    let mut request = Request::new(body);
    *request.method_mut() = std::mem::take(&mut head.method);
    *request.uri_mut() = target.into();
    *request.headers_mut() = std::mem::take(&mut head.headers);
    if head.websocket {
        websocket::add_upgrade_fields(request.headers_mut());
    }
    Ok(request)
}

/// The response, or the error. The error contains the request if no byte of it was sent.
type Sent = Result<Response<Incoming>, TrySendError<Request<upstream::RequestBody>>>;

/// As [`Sent`], but boxed: both variants are large, and several futures hold them in turn.
type BoxedSent = Result<Box<Response<Incoming>>, Box<TrySendError<Request<upstream::RequestBody>>>>;

/// Sends a request in the connection's protocol. The caller awaits the response with [`within`].
pub fn transmit(
    upstream: &mut Upstream,
    mut request: Request<upstream::RequestBody>,
    flow: &Flow,
) -> impl Future<Output = Sent> + Send + use<> {
    match upstream {
        Upstream::Http1(one) => {
            one.received.store(false, Ordering::Relaxed);
            make_http1(&mut request, &one.host);
            let Http1 { driver, sender, .. } = &mut **one;
            Either::Left(driver.before_poll(|| sender.try_send_request(request)))
        }
        Upstream::Http2(one) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            request.headers_mut().remove(TRANSFER_ENCODING);
            make_absolute(request.uri_mut(), flow);
            Either::Right(one.sender.try_send_request(request))
        }
    }
}

/// Denies sending secrets in clear text to an address that is not private.
pub fn deny_clear_text_secrets(flow: &Flow, upstream: &Upstream) -> Verdict {
    let address = upstream.address().ip();
    if may_carry_secrets(flow.scheme(), address) {
        return Ok(());
    }
    let sentence = format!(
        "Address not allowed: {address} is not private, so secrets go there only over TLS, and the URL of {} is plain HTTP",
        flow.host()
    );
    Err(Denial::new(Code::AddressNotAllowed, sentence).by(names::PROXY))
}

fn may_carry_secrets(scheme: Scheme, address: IpAddr) -> bool {
    let is_private = match fold_address(address) {
        IpAddr::V4(four) => four.is_loopback() || four.is_private(),
        IpAddr::V6(six) => six.is_loopback() || six.is_unique_local(),
    };
    is_private || scheme == Scheme::Https
}

fn make_http1(request: &mut Request<upstream::RequestBody>, host: &HeaderValue) {
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert(HOST, host.clone());
    frame_body(request);
    // After a failed attempt over HTTP/2, the request still has a URI in absolute form.
    if request.uri().authority().is_some()
        && let Some(origin_form) = request.uri().path_and_query().cloned()
    {
        *request.uri_mut() = origin_form.into();
    }
}

/// Adds the scheme and authority that an HTTP/2 request needs.
fn make_absolute(uri: &mut Uri, flow: &Flow) {
    let mut parts = std::mem::take(uri).into_parts();
    parts.scheme = flow.scheme().as_str().parse().ok();
    let authority = flow.endpoint().map(Endpoint::authority);
    parts.authority = authority.and_then(|authority| authority.parse().ok());
    // A host in normal form is valid in every URI.
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Marks a body of unknown length as chunked. hyper drops the body of a GET that has neither
/// `Content-Length` nor `Transfer-Encoding`, but the judged body must be sent.
fn frame_body(request: &mut Request<upstream::RequestBody>) {
    let body = request.body();
    let unknown = !body.is_end_stream() && body.size_hint().exact().is_none();
    let headers = request.headers_mut();
    if unknown && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Awaits a response head within `upstream.response_timeout`. If the client has sent more of its
/// body by the deadline, the time starts over, so that a long upload is not cut off. The client
/// connection's idle timeout is suspended meanwhile.
///
/// An HTTP/1.1 connection keeps its timer for the next request. The timer may still be set for the
/// earlier deadline of the previous request. It is then reset only when it fires, which is rare. A
/// reset for each request would take the lock of the timer wheel twice.
pub async fn within(
    exchange: &Exchange,
    upstream: &mut Upstream,
    mut sending: Pin<&mut impl Future<Output = Sent>>,
) -> Result<BoxedSent, Denial> {
    let live = &exchange.live;
    let limit = exchange.snapshot.config.proxy.upstream.response_timeout;
    let _waiting = exchange.session.idle.wait();
    let sent = || live.flow.counters.bytes_in.load(Ordering::Relaxed);
    let mut before = sent();
    let mut deadline = Instant::now() + limit;
    let mut timer = upstream
        .timer()
        .and_then(Option::take)
        .unwrap_or_else(|| Box::pin(sleep_until(deadline)));
    if timer.deadline() > deadline {
        timer.as_mut().reset(deadline);
    }
    loop {
        let done = poll_fn(|context| {
            let done = upstream.poll(context, |context| {
                let done = sending.as_mut().poll(context);
                done.map(|done| done.map(Box::new).map_err(Box::new))
            });
            match done {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => timer.as_mut().poll(context).map(|()| None),
            }
        });
        if let Some(done) = done.await {
            if let Some(kept) = upstream.timer() {
                *kept = Some(timer);
            }
            return Ok(done);
        }
        let now = Instant::now();
        if now >= deadline {
            if sent() == before {
                return Err(upstream::not_answered_in_time(live.flow.host()));
            }
            before = sent();
            deadline = now + limit;
        }
        timer.as_mut().reset(deadline);
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn secrets_go_in_clear_text_only_to_private_addresses() {
        each_row(
            [
                ("127.0.0.1", true),
                ("10.1.2.3", true),
                ("172.16.0.1", true),
                ("192.168.1.1", true),
                ("::1", true),
                ("fd00::1", true),
                ("::ffff:10.1.2.3", true),
                ("192.0.2.1", false),
                ("172.32.0.1", false),
                ("100.64.0.1", false),
                ("169.254.169.254", false),
                ("2001:db8::1", false),
                ("fe80::1", false),
                ("::ffff:192.0.2.1", false),
            ],
            |(address, is_private)| {
                let address = address.parse().unwrap();
                assert_eq!(may_carry_secrets(Scheme::Http, address), is_private);
                assert!(may_carry_secrets(Scheme::Https, address));
            },
        );
    }
}
