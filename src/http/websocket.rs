//! WebSockets: the opening handshake passes the chain as a request, then bytes are relayed and
//! counted. The frames that the upstream sends are parsed only if an addon filters messages.

mod filtered;
mod frames;
mod messages;

use addons::contract::{Denial, Host, MessageFilter, names};
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::exchange::Exchange;
use super::headers::strip_hop_by_hop;
use super::relay::relay as relay_bytes;
use super::reply::{self, Reply};
use super::request_body::RequestBody;
use crate::upstream::not_answered;
use filtered::FilteredUpstream;

pub use frames::{FrameReader, Opcode, Piece, Violation};
pub use messages::{Failure, Messages};

/// The GUID that a server appends to the key before it hashes them, to show that it understood the
/// handshake (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Adds the hop-by-hop fields of an opening handshake, which were removed when the head was read.
pub fn add_upgrade_fields(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// A client's opening handshake that is valid under RFC 6455, section 4.2.1.
pub struct Opening {
    client: OnUpgrade,
    accept: String,
    /// Whether the request to the upstream offers an extension. An addon may have removed the
    /// client's offer.
    offers_extension: bool,
}

impl Opening {
    /// Checks the key and the version, and that there is no body, since frames follow the head.
    pub fn new(client: OnUpgrade, headers: &HeaderMap, body: &RequestBody) -> Result<Self, Denial> {
        let malformed = |what| Denial::malformed(what).by(names::PROXY);
        if !body.is_empty() {
            return Err(malformed("a WebSocket opening must not have a body"));
        }
        if only(headers, &SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(malformed("Sec-WebSocket-Version is other than 13"));
        }
        let key = only(headers, &SEC_WEBSOCKET_KEY);
        let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16));
        let key = key.ok_or_else(|| malformed("Sec-WebSocket-Key is not 16 bytes in base64"))?;
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(key.as_bytes());
        hash.update(GUID);
        Ok(Self {
            client,
            accept: STANDARD.encode(hash.finish()),
            offers_extension: headers.contains_key(SEC_WEBSOCKET_EXTENSIONS),
        })
    }

    /// Returns the header fields for the client. Denies a response that does not accept the
    /// handshake, or that agrees to an extension although the request offered none. Without the
    /// check of `Sec-WebSocket-Accept`, a client could open a tunnel through an upstream that
    /// echoes a status and a field of the client's choice.
    pub fn accept(
        self,
        response: &mut Response<Incoming>,
        host: &Host,
    ) -> Result<(HeaderMap, Accepted), Denial> {
        let headers = response.headers();
        let websocket = headers
            .get(UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
        if !websocket || only(headers, &SEC_WEBSOCKET_ACCEPT) != Some(self.accept.as_str()) {
            let why = "switched to a protocol that was not asked for";
            return Err(not_answered(host, why));
        }
        if !self.offers_extension && headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            let why = "agreed to a WebSocket extension that was not offered";
            return Err(not_answered(host, why));
        }
        let upstream = hyper::upgrade::on(&mut *response);
        let mut headers = std::mem::take(response.headers_mut());
        strip_hop_by_hop(&mut headers);
        add_upgrade_fields(&mut headers);
        let client = self.client;
        Ok((headers, Accepted { client, upstream }))
    }
}

/// The value of a field that appears exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// A handshake that the upstream has accepted.
pub struct Accepted {
    client: OnUpgrade,
    upstream: OnUpgrade,
}

impl Accepted {
    /// Returns the 101 response and spawns a task that relays as [`relay_bytes`] does. Without
    /// `filters` the frames are not parsed.
    pub fn relay(
        self,
        headers: HeaderMap,
        filters: Vec<MessageFilter>,
        mut exchange: Box<Exchange>,
    ) -> Response<Reply> {
        let status = StatusCode::SWITCHING_PROTOCOLS;
        exchange.live.answered(status.as_u16());
        let tasks = exchange.session.service.tasks.clone();
        let (client, upstream) = (self.client, self.upstream);
        tasks.spawn(async move {
            let Exchange {
                live,
                snapshot,
                session,
            } = &mut *exchange;
            if let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) {
                let (client, upstream) = (TokioIo::new(client), TokioIo::new(upstream));
                if filters.is_empty() {
                    relay_bytes(session, snapshot, live, client, upstream).await;
                    return;
                }
                let mut upstream = FilteredUpstream::new(upstream, filters);
                Box::pin(relay_bytes(session, snapshot, live, client, &mut upstream)).await;
                if let Some(failure) = upstream.failure() {
                    live.denied(&failure.denial(live.flow.host()));
                }
            }
        });
        let mut response = reply::empty(status);
        *response.headers_mut() = headers;
        response
    }
}
