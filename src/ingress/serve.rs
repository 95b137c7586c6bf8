//! Serves HTTP on a client connection until the connection ends.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use addons::contract::{Denial, Kind, LiveFlow, names};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::connection::Connection;
use super::head_lines::HeadLines;
use super::read_ahead::ReadAhead;
use crate::http::{Ingress, Permission, Reply, Watched, handle};
use crate::runtime::WakeGated;
use crate::upstream::MAX_HEADER_LINES;

/// Limit on the concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// Limit on the streams that the client resets before they are accepted. One more closes the
/// connection, which bounds rapid-reset floods. Below h2's default (20), so that a test can show
/// that the limit applies.
const MAX_PENDING_RESETS: usize = 10;
/// Limit on the streams that h2 resets for errors of the client. One more closes the connection.
/// h2's default is 1024.
const MAX_ERROR_RESETS: usize = 256;
/// HTTP/2 receive windows in bytes, for the request bodies of a client.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Answers a request of a connection. Each kind of listener has its handler; tunnels have
/// [`exchange`]. The future is boxed, so that hyper reserves only a pointer for it as long as the
/// connection lives.
pub type Handler =
    fn(&Connection, &Ingress, Request<Incoming>) -> BoxFuture<'static, Response<Reply>>;

/// Answers a request by an exchange with an upstream. The chain denies a CONNECT inside a tunnel.
pub fn exchange(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    Box::pin(handle(Arc::clone(&connection.session), ingress, request))
}

/// Serves HTTP/1.1 until the client closes the connection, the container's lease ends, a timeout
/// passes, a reload, the security level or the end of a grant revokes the permission, or the process
/// stops. `permitted`
/// is the tunnel's permission; without a tunnel, the permission of the latest request counts.
///
/// hyper's state of a connection has two buffers of 8 KiB. A connection that has been idle for 2 s
/// drops this state, unless its latest request had a body. It makes a new state when the client
/// sends the next byte. It also makes a new state, with a higher limit, for a head with more lines
/// than hyper reads by default.
pub async fn serve_http1<I>(
    connection: Connection,
    ingress: Ingress,
    permitted: Option<Permission>,
    mut io: ReadAhead<I>,
    handler: Handler,
) -> End
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shared, by) = (connection.clone(), ingress.clone());
    let heads = HeadLines::new(Arc::clone(&connection.idle));
    io.count(Arc::clone(&heads));
    let seen = Arc::clone(&heads);
    let mut service = service_fn(move |request: Request<Incoming>| {
        // The bytes after the head of a CONNECT are no head.
        let is_connect = request.method() == Method::CONNECT;
        seen.request(is_connect || !request.body().is_end_stream());
        handler(&shared, &by, request).map(Ok::<_, Infallible>)
    });
    let permitted = permitted.as_ref();
    loop {
        let mut builder = http1::Builder::new();
        builder
            // `IdleTracker::watch` applies this timeout, and the idle timeout between requests.
            .header_read_timeout(None)
            .max_header_size(max_header_bytes(&connection));
        if heads.had_long() {
            builder.max_headers(MAX_HEADER_LINES);
        }
        let serving = builder
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        let finish = http1::UpgradeableConnection::graceful_shutdown;
        let mut serving = Box::pin(serving);
        let parts = loop {
            let by = (&connection, &ingress, Some(&*heads));
            match attend(by, permitted, serving, finish).await {
                Attended::Ended(end) => {
                    // The client may go on in a tunnel.
                    heads.stop();
                    return end;
                }
                // After the response, for example to a denied upload, the rest of the body may
                // still arrive. Without hyper's state, that rest would be read as the next request.
                Attended::Idle(same) if heads.has_body() => serving = same,
                Attended::Idle(idle) => break Pin::into_inner(idle).into_parts(),
                Attended::LongHead(same) => {
                    heads.note_long();
                    break Pin::into_inner(same).into_parts();
                }
            }
        };
        let Some(parts) = parts else {
            return End::ByClient;
        };
        (io, service) = (parts.io.into_inner(), parts.service);
        io.unread(parts.read_buf);
        if let Some(end) = wait(&connection, permitted, &mut io).await {
            return end;
        }
    }
}

/// Waits for the next request of an idle connection. Returns `None` when its first byte arrives, or
/// when the stream ends or fails. If the connection must be closed before that, returns how it
/// ended.
async fn wait<I: AsyncRead + AsyncWrite + Unpin>(
    connection: &Connection,
    permitted: Option<&Permission>,
    io: &mut ReadAhead<I>,
) -> Option<End> {
    let mut signals = WakeGated::new(signal(connection, permitted));
    loop {
        tokio::select! {
            biased;
            () = io.readable() => return None,
            event = &mut signals => match event {
                Signal::Idle => signals = WakeGated::new(signal(connection, permitted)),
                Signal::Finish => {
                    // Over TLS the client gets a close_notify, if the socket takes it at once.
                    let _ = io.shutdown().now_or_never();
                    return Some(End::Otherwise);
                }
                Signal::End => return Some(End::Otherwise),
            },
        }
    }
}

/// Serves HTTP/2 inside a tunnel. Ends for the same reasons as [`serve_http1`].
pub async fn serve_http2<I>(
    connection: Connection,
    ingress: Ingress,
    permitted: Option<Permission>,
    io: I,
) -> End
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
    let mut serving = Box::pin(serving);
    loop {
        let permitted = permitted.as_ref();
        let by = (&connection, &ingress, None);
        match attend(by, permitted, serving, finish).await {
            Attended::Ended(end) => return end,
            Attended::Idle(same) | Attended::LongHead(same) => serving = same,
        }
    }
}

fn max_header_bytes(connection: &Connection) -> usize {
    let snapshot = connection.service.snapshot();
    snapshot.config.proxy.limits.max_header_bytes
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed it, the transport failed, or the client violated HTTP/2. Also after a
    /// response with `Connection: close`.
    ByClient,
    /// An HTTP/1.1 head that cannot be parsed, the lease, a reload, the security level, a timeout
    /// or the process ended it.
    Otherwise,
}

/// The result of [`attend`].
enum Attended<C> {
    Ended(End),
    /// The connection is idle; contains the future that serves it.
    Idle(Pin<Box<C>>),
    /// A head arrives that hyper does not read by default.
    LongHead(Pin<Box<C>>),
}

/// Serves until the connection ends, must be closed or is idle, or until a head is long. `serving`
/// is boxed, since the future of this function reserves space for an argument twice.
async fn attend<C>(
    (connection, ingress, heads): (&Connection, &Ingress, Option<&HeadLines>),
    permitted: Option<&Permission>,
    mut serving: Pin<Box<C>>,
    finish: fn(Pin<&mut C>),
) -> Attended<C>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut signals = WakeGated::new(signal(connection, permitted));
    let mut finishing = false;
    loop {
        tokio::select! {
            biased;
            served = serving.as_mut() => {
                return Attended::Ended(match served {
                    Err(error) if error.is_parse() => {
                        note_failure(connection, ingress, &error);
                        End::Otherwise
                    }
                    _ if finishing => End::Otherwise,
                    _ => End::ByClient,
                });
            }
            // Polled after each poll of `serving`, which read the head.
            () = long_head(heads) => return Attended::LongHead(serving),
            event = &mut signals => {
                match event {
                    Signal::End => return Attended::Ended(End::Otherwise),
                    Signal::Finish => {
                        finishing = true;
                        finish(serving.as_mut());
                    }
                    Signal::Idle => {
                        connection.hand_back();
                        if !finishing && connection.idle.is_between_requests() {
                            return Attended::Idle(serving);
                        }
                    }
                }
                signals = match finishing {
                    true => WakeGated::new(closed(connection, permitted)),
                    false => WakeGated::new(signal(connection, permitted)),
                };
            }
        }
    }
}

/// Returns if the head that is arriving is long. Registers no waker.
async fn long_head(heads: Option<&HeadLines>) {
    poll_fn(|_| match heads.is_some_and(HeadLines::is_long) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// An event, other than received bytes, that ends a connection or makes it idle.
enum Signal {
    /// The connection has been idle for 2 s.
    Idle,
    /// Close gracefully: requests under way are finished.
    Finish,
    /// Close immediately.
    End,
}

/// Waits for the next event of a connection.
async fn signal(connection: &Connection, permitted: Option<&Permission>) -> Signal {
    tokio::select! {
        signal = closed(connection, permitted) => signal,
        () = connection.service.stopping.cancelled() => Signal::Finish,
    }
}

/// Waits as [`signal`] does, but never returns [`Signal::Finish`].
async fn closed(connection: &Connection, permitted: Option<&Permission>) -> Signal {
    tokio::select! {
        watched = connection.idle.watch(connection.timeouts) => match watched {
            Watched::Idle => Signal::Idle,
            Watched::Over => Signal::End,
        },
        () = connection.ended(permitted) => Signal::End,
    }
}

/// Records the denial of a head that hyper could not parse. hyper has already answered the request.
/// A flow must not begin after its response, so the start of the flow is set back to the first byte
/// of the head.
fn note_failure(connection: &Connection, ingress: &Ingress, error: &hyper::Error) {
    let snapshot = connection.service.snapshot();
    let mut start = connection.start(&snapshot, Kind::Http, ingress.destination());
    let since = connection.idle.since_head();
    start.started = start.started.checked_sub(since).unwrap_or(start.started);
    start.at = start.at.checked_sub(since).unwrap_or(start.at);
    let denial = Denial::malformed("the request head cannot be parsed").by(names::PROXY);
    let mut live = LiveFlow::begin(snapshot.chain(), start);
    live.denied(&denial);
    if error.is_parse_too_large() {
        live.answered(431);
    }
}
