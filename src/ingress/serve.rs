//! Serves HTTP on a client connection until the connection ends.

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

/// The most concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// The most reset streams that wait to be accepted, and the most streams that h2 resets for a
/// client's errors; one more closes the connection. Both bound rapid-reset floods. They are below
/// h2's defaults (20 and 1024), so that a test can show that they apply.
const MAX_PENDING_RESETS: usize = 10;
const MAX_ERROR_RESETS: usize = 256;
/// HTTP/2 receive windows in bytes, for the request bodies of a client.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Answers a request of a connection; each kind of listener has one. The future is boxed: hyper
/// keeps space for it as long as the connection lives, and an idle connection keeps only a pointer.
pub type Handler =
    fn(&Connection, &Ingress, Request<Incoming>) -> BoxFuture<'static, Response<Reply>>;

/// Answers a request by an exchange with an upstream. A CONNECT inside a tunnel is denied.
pub fn exchange(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    Box::pin(handle(Arc::clone(&connection.session), ingress, request))
}

/// Serves HTTP/1.1 until the client closes the connection, its lease ends, a timeout passes, a
/// reload revokes the permission, or the process stops. `permitted` is the tunnel's permission;
/// without a tunnel, each request is permitted separately.
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
        // The watchdog of the connection tells an idle connection from a slow head.
        .header_read_timeout(None)
        .max_header_size(max_header_bytes(&connection))
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let finish = http1::UpgradeableConnection::graceful_shutdown;
    attend(connection, ingress, permitted, Box::pin(serving), finish)
}

/// Serves HTTP/2 inside a tunnel. Ends for the same reasons as [`serve_http1`].
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
    /// The client closed it, or the transport failed.
    ByClient,
    /// A protocol error, the lease, a reload, a timeout or the process ended it.
    Otherwise,
}

/// Serves until the connection ends or must be closed. `serving` is boxed, since a future keeps
/// space for an argument twice, even while the connection is idle.
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
    let mut close = WakeGated::new(close_signal(&connection, permitted));
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
            signal = &mut close => match signal {
                CloseSignal::End => return End::Otherwise,
                CloseSignal::Finish => {
                    by_itself = End::Otherwise;
                    finish(serving.as_mut());
                    close = WakeGated::new(ended(&connection, permitted));
                }
            },
        }
    }
}

/// How a connection must be closed.
enum CloseSignal {
    /// Gracefully: requests under way are finished.
    Finish,
    /// Immediately.
    End,
}

async fn close_signal(connection: &Connection, permitted: Option<&Permission>) -> CloseSignal {
    tokio::select! {
        signal = ended(connection, permitted) => signal,
        () = connection.service.stopping.cancelled() => CloseSignal::Finish,
    }
}

async fn ended(connection: &Connection, permitted: Option<&Permission>) -> CloseSignal {
    tokio::select! {
        () = quiet(connection) => {}
        () = connection.ended(permitted) => {}
    }
    CloseSignal::End
}

async fn quiet(connection: &Connection) {
    connection
        .idle
        .watch(connection.timeouts, || connection.hand_back())
        .await;
}

/// Records the denial of a head that hyper could not parse. hyper has already answered it, so the
/// start of the flow is set back to the first byte of the head: a flow must not begin after its
/// response.
fn note_failure(connection: &Connection, ingress: &Ingress, error: &hyper::Error) {
    let snapshot = connection.service.snapshot();
    let (client, endpoint) = (connection.client.clone(), ingress.destination());
    let mut start = snapshot.chain().to_upstream(Kind::Http, client, endpoint);
    let since = connection.idle.since_head();
    start.started = start.started.checked_sub(since).unwrap_or(start.started);
    start.at = start.at.checked_sub(since).unwrap_or(start.at);
    start.principal = connection.principal.clone();
    let denial = Denial::malformed("the request head cannot be parsed").by(names::PROXY);
    let mut live = LiveFlow::begin(snapshot.chain(), start);
    live.denied(&denial);
    if error.is_parse_too_large() {
        live.answered(431);
    }
}
