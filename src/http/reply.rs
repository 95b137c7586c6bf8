//! Bodies of responses, and the proxy's own responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use addons::contract::{Denial, FlowId};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::broke_off::BodyError;
use super::headers::X_PROXY_DENIED;
use super::response_body::ResponseBody;
use super::streamed_body::StreamedBody;

/// A response body for a client: bytes or a stream of the proxy, or an upstream's body.
pub enum Reply {
    Local(Full<Bytes>),
    Streamed(Box<StreamedBody>),
    Upstream(Box<ResponseBody>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Local(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map_err(|never| match never {})
            }
            Self::Streamed(body) => Pin::new(&mut **body).poll_frame(context),
            Self::Upstream(body) => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local(body) => body.is_end_stream(),
            Self::Streamed(body) => body.is_end_stream(),
            Self::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Local(body) => body.size_hint(),
            Self::Streamed(body) => body.size_hint(),
            Self::Upstream(body) => body.size_hint(),
        }
    }
}

pub fn empty(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::Local(Full::default()));
    *response.status_mut() = status;
    response
}

/// A denial as an HTTP response: JSON with the code in `x-proxy-denied` and a `Retry-After` if the
/// denial has one. The JSON of an internal error also contains the flow's id. A denial with an
/// answer in the client's protocol is sent as that answer, with `x-proxy-denied` only if the denial
/// refuses the request.
pub fn denied(denial: &Denial, flow: FlowId) -> Response<Reply> {
    let code = denial.code();
    let denied = HeaderValue::from_static(code.as_str());
    if let Some(answer) = denial.answer() {
        let mut response = Response::new(Reply::Local(answer.body.clone().into()));
        *response.status_mut() = status(answer.status);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if denial.refuses() {
            headers.insert(X_PROXY_DENIED, denied);
        }
        return response;
    }
    let mut body = denial.to_json();
    if code == addons::contract::Code::InternalError
        && let Some(object) = body.as_object_mut()
    {
        object.insert("flow".into(), flow.to_string().into());
    }
    // A `Value` is always serializable. Writing it through `Display` takes twice as long.
    let mut text = serde_json::to_vec(&body).unwrap_or_default();
    text.push(b'\n');
    let mut response = Response::new(Reply::Local(text.into()));
    *response.status_mut() = status(code.status());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_PROXY_DENIED, denied);
    if let Some(seconds) = denial.retry_after_seconds() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// A denial of a CONNECT. Its sentence is also the reason phrase, the only part of the response
/// that many clients show.
pub fn denied_connect(denial: &Denial, flow: FlowId) -> Response<Reply> {
    let mut response = denied(denial, flow);
    if let Ok(phrase) = hyper::ext::ReasonPhrase::try_from(denial.sentence().as_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// Adds `Connection: close`, so that hyper closes the connection after this response.
pub fn closing(mut response: Response<Reply>) -> Response<Reply> {
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Adds `Connection: close` if `closes` is set.
pub fn closing_if(closes: bool, response: Response<Reply>) -> Response<Reply> {
    match closes {
        true => closing(response),
        false => response,
    }
}

/// A denial as the bytes of an HTTP/1.1 response, for a client whose tunnel contains a protocol
/// that is not allowed. A packet capture then shows the reason.
pub fn raw(denial: &Denial) -> Vec<u8> {
    let body = format!("{}\n", denial.to_json());
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\nx-proxy-denied: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        denial.code().status(),
        denial.sentence(),
        denial.code().as_str(),
        body.len(),
    )
    .into_bytes()
}

fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
