//! Serving HTTP to a sandbox on one connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use addons::contract::{Denial, Kind, LiveFlow, names};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use crate::http::{Ingress, Permission, Reply, handle};
use crate::runtime::WakeGated;

/// Streams that one HTTP/2 client may have open.
const MAX_STREAMS: u32 = 128;
/// Streams that a client may have reset before they were served, and streams that the proxy may
/// have to reset for the client's errors, before the connection is closed: rapid-reset floods end
/// here. Both are below h2's own limits (20 and 1024), so that a test tells which of them acted.
const MAX_PENDING_RESETS: usize = 10;
const MAX_ERROR_RESETS: usize = 256;
/// Receive windows: what a client may have in flight towards us.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Answers a request of a connection; each kind of listener has one. Boxed: hyper keeps room for
/// this future as long as the connection lives, and an idle one needs but a pointer.
pub type Handler =
    fn(&Connection, &Ingress, Request<Incoming>) -> BoxFuture<'static, Response<Reply>>;

/// Answers a request by an exchange with an upstream; a CONNECT is a request like others.
pub fn exchange(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    Box::pin(handle(Arc::clone(&connection.session), ingress, request))
}

/// Serves HTTP/1.1 until the client, the lease, the idle timeout, a reload that forbids what is
/// under way, or the process ends it. What was permitted is the tunnel; without one, each request
/// is permitted by itself.
pub fn serve_http1<I>(
    connection: Connection,
    ingress: Ingress,
    permitted: Option<Permission>,
    io: I,
    handler: Handler,
) -> impl Future<Output = End> + Send + use<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shared, by) = (connection.clone(), ingress.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        handler(&shared, &by, request).map(Ok::<_, Infallible>)
    });
    let serving = http1::Builder::new()
        // The connection's own watchdog tells an idle connection from a slow head.
        .header_read_timeout(None)
        .max_header_size(max_header_bytes(&connection))
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let finish = http1::UpgradeableConnection::graceful_shutdown;
    attend(connection, ingress, permitted, Box::pin(serving), finish)
}

/// The same for HTTP/2.
pub fn serve_http2<I>(
    connection: Connection,
    ingress: Ingress,
    permitted: Option<Permission>,
    io: I,
) -> impl Future<Output = End> + Send + use<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shared, by) = (Arc::clone(&connection.session), ingress.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        handle(Arc::clone(&shared), &by, request).map(Ok::<_, Infallible>)
    });
    let max_header = u32::try_from(max_header_bytes(&connection)).unwrap_or(u32::MAX);
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(max_header)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(io), service);
    let finish = http2::Connection::graceful_shutdown;
    attend(connection, ingress, permitted, Box::pin(serving), finish)
}

fn max_header_bytes(connection: &Connection) -> usize {
    let snapshot = connection.service.snapshot();
    snapshot.config.proxy.limits.max_header_bytes
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed it, or broke it off.
    ByClient,
    /// Something else ended it: an error of the protocol, the lease, a reload, or the process.
    Otherwise,
}

/// Serves until the connection ends by itself or there is word to end it. What is served comes
/// boxed: its room counts for every idle connection, and a future holds what it is given twice.
async fn attend<C>(
    connection: Connection,
    ingress: Ingress,
    permitted: Option<Permission>,
    mut serving: Pin<Box<C>>,
    finish: fn(Pin<&mut C>),
) -> End
where
    C: Future<Output = hyper::Result<()>>,
{
    let permitted = permitted.as_ref();
    let mut word = WakeGated::new(word_to_end(&connection, permitted));
    let mut by_itself = End::ByClient;
    loop {
        tokio::select! {
            biased;
            served = serving.as_mut() => {
                return match served {
                    Err(error) if error.is_parse() => {
                        note_failure(&connection, &ingress, &error);
                        End::Otherwise
                    }
                    _ => by_itself,
                };
            }
            word_to = &mut word => match word_to {
                WordTo::End => return End::Otherwise,
                WordTo::Finish => {
                    by_itself = End::Otherwise;
                    finish(serving.as_mut());
                    word = WakeGated::new(ended(&connection, permitted));
                }
            },
        }
    }
}

/// What comes to a connection from elsewhere.
enum WordTo {
    /// No new requests.
    Finish,
    /// At once.
    End,
}

async fn word_to_end(connection: &Connection, permitted: Option<&Permission>) -> WordTo {
    tokio::select! {
        word = ended(connection, permitted) => word,
        () = connection.service.stopping.cancelled() => WordTo::Finish,
    }
}

async fn ended(connection: &Connection, permitted: Option<&Permission>) -> WordTo {
    tokio::select! {
        () = quiet(connection) => {}
        () = connection.ended(permitted) => {}
    }
    WordTo::End
}

async fn quiet(connection: &Connection) {
    connection
        .idle
        .watch(connection.timeouts, || connection.hand_back())
        .await;
}

/// Records the denial of a head that hyper could not read. hyper has answered it by now, so the
/// flow is dated back to the head: no flow begins after its answer.
fn note_failure(connection: &Connection, ingress: &Ingress, error: &hyper::Error) {
    let snapshot = connection.service.snapshot();
    let (client, endpoint) = (connection.client.clone(), ingress.destination());
    let mut start = snapshot.chain().to_upstream(Kind::Http, client, endpoint);
    let since = connection.idle.since_head();
    start.started = start.started.checked_sub(since).unwrap_or(start.started);
    start.at = start.at.checked_sub(since).unwrap_or(start.at);
    start.principal = connection.principal.clone();
    let denial = Denial::malformed("the head cannot be read").by(names::PROXY);
    let mut live = LiveFlow::begin(snapshot.chain(), start);
    live.denied(&denial);
    if error.is_parse_too_large() {
        live.answered(431);
    }
}
