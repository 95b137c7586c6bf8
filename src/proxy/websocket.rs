//! WebSockets: the opening passes the chain as a request, then bytes are relayed and counted.

use std::sync::Arc;

use addons::contract::{Code, Denial, Host};
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::connection::Connection;
use super::headers::strip_hop_by_hop;
use super::live::LiveFlow;
use super::permission::Permitted;
use super::relay::relay as relay_bytes;
use super::reply::{self, Reply};

/// The fields that were left behind as hop-by-hop and are needed once more.
pub fn ask(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// An upstream that agreed.
pub struct Accepted {
    pub headers: HeaderMap,
    upgrade: OnUpgrade,
}

/// Checks that the upstream agreed to what was asked.
pub fn accept(response: &mut Response<Incoming>, host: &Host) -> Result<Accepted, Denial> {
    let agreed = response.headers().get(UPGRADE);
    if !agreed.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        let sentence = format!("{host} switched to a protocol that was not asked for");
        return Err(Denial::new(Code::UpstreamUnreachable, sentence).with("step", "response"));
    }
    let upgrade = hyper::upgrade::on(&mut *response);
    let mut headers = std::mem::take(response.headers_mut());
    strip_hop_by_hop(&mut headers);
    ask(&mut headers);
    Ok(Accepted { headers, upgrade })
}

/// Answers the client and relays from then on, until a side ends, nothing moves any more, the
/// lease ends, a reload forbids it, or we end.
pub fn relay(
    connection: Arc<Connection>,
    mut live: Box<LiveFlow>,
    permitted: Permitted,
    accepted: Accepted,
    client: OnUpgrade,
) -> Response<Reply> {
    let status = StatusCode::SWITCHING_PROTOCOLS;
    live.answered(status.as_u16());
    let tasks = connection.engine.tasks.clone();
    tasks.spawn(async move {
        let (Ok(client), Ok(upstream)) = tokio::join!(client, accepted.upgrade) else {
            connection.activity.end();
            return;
        };
        let (client, upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        tokio::select! {
            () = relay_bytes(&connection, &mut live, client, upstream) => {}
            () = connection.revoked(&permitted) => {}
        }
        connection.activity.end();
    });
    let mut response = reply::empty(status);
    *response.headers_mut() = accepted.headers;
    response
}
