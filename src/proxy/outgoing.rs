//! Sending a request on: its form for each protocol, and how long an answer may take.

use std::error::Error as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use addons::contract::{Code, Denial, Host, Request as Head, Scheme};
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::timeout;

use super::activity::Activity;
use super::body::{BodyError, RequestBody};
use super::live::LiveFlow;
use super::upstream::{Target, Upstream};
use super::websocket;

/// The request as the upstream gets it. HTTP/2 needs the absolute form; [`transmit`] cuts it
/// down for HTTP/1.1.
pub fn outgoing(
    head: Head,
    body: RequestBody,
    target: &Target,
) -> Result<Request<RequestBody>, Denial> {
    let path = head.path.sent();
    let target_text = match &head.query {
        Some(query) => format!("{path}?{query}").parse::<PathAndQuery>(),
        None => path.parse::<PathAndQuery>(),
    };
    let path_and_query = target_text.map_err(|_| Denial::malformed("the path cannot be sent"))?;
    let uri = Uri::builder()
        .scheme(target.scheme.as_str())
        .authority(authority_text(target))
        .path_and_query(path_and_query)
        .build()
        .map_err(|_| Denial::malformed("the path cannot be sent"))?;
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = head.headers;
    if head.websocket {
        websocket::ask(request.headers_mut());
    }
    Ok(request)
}

/// The authority in normal form; the scheme's own port is left out, as clients do.
fn authority_text(target: &Target) -> String {
    match (target.scheme, target.port) {
        (Scheme::Http, 80) | (Scheme::Https, 443) => target.host.to_string(),
        (_, port) => format!("{}:{port}", target.host),
    }
}

/// The answer, or why there is none, with the request where nothing of it was sent.
pub type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// Sends a request; the connection comes back with the answer.
pub async fn transmit(
    upstream: Upstream,
    mut request: Request<RequestBody>,
    target: &Target,
) -> (Sent, Upstream) {
    match upstream {
        Upstream::Http1(mut one) => {
            *request.version_mut() = Version::HTTP_11;
            if let Ok(host) = HeaderValue::from_str(&authority_text(target)) {
                request.headers_mut().insert(HOST, host);
            }
            frame_body(&mut request);
            let origin_form = request.uri().path_and_query().cloned();
            if let Some(origin_form) = origin_form {
                *request.uri_mut() = origin_form.into();
            }
            let sent = one.sender.try_send_request(request).await;
            (sent, Upstream::Http1(one))
        }
        Upstream::Http2(mut one) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(HOST);
            request.headers_mut().remove(TRANSFER_ENCODING);
            let sent = one.sender.try_send_request(request).await;
            (sent, Upstream::Http2(one))
        }
    }
}

/// Says that a body of unknown length is chunked: hyper takes a GET without either field for one
/// without a body, and what was judged must be what is sent.
fn frame_body(request: &mut Request<RequestBody>) {
    let body = request.body();
    let unknown = !body.is_end_stream() && body.size_hint().exact().is_none();
    let headers = request.headers_mut();
    if unknown && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Waits for a response head. The time runs from the last byte of the request, so that a long
/// upload is not cut short; the client is not idle meanwhile, it is we who keep it waiting.
pub async fn within<T>(
    limit: Duration,
    activity: &Activity,
    live: &LiveFlow,
    sending: impl Future<Output = T>,
) -> Result<T, Denial> {
    let _waiting = activity.wait();
    let sent = || live.flow.counters.bytes_in.load(Ordering::Relaxed);
    let mut sending = std::pin::pin!(sending);
    loop {
        let before = sent();
        match timeout(limit, &mut sending).await {
            Ok(done) => return Ok(done),
            Err(_elapsed) if sent() > before => {}
            Err(_elapsed) => {
                let sentence = format!("{} did not answer in time", live.flow.host);
                return Err(Denial::new(Code::UpstreamTimeout, sentence).with("step", "response"));
            }
        }
    }
}

/// A request's body ended before its time.
pub fn request_broke_off(error: &BodyError) -> Denial {
    match error {
        BodyError::Denied(denial) => denial.clone(),
        BodyError::Peer(_) => Denial::malformed("the body broke off").by("proxy"),
    }
}

/// There is no answer. Whose fault it is: the client's, where its body broke off.
pub fn upstream_broke_off(host: &Host, error: &hyper::Error) -> Denial {
    let ours = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(body) = ours {
        return request_broke_off(body);
    }
    not_answered(
        host,
        match error.is_parse() {
            true => "sent what is not HTTP",
            false => "closed the connection",
        },
    )
}

/// The upstream did something else than answer.
pub fn not_answered(host: &Host, why: &str) -> Denial {
    Denial::new(Code::UpstreamUnreachable, format!("{host} {why}")).with("step", "response")
}
