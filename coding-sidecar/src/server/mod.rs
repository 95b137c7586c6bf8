//! The HTTP/1.1 server, on a Unix socket and on TCP.

mod body;
mod listeners;
mod operations;
mod reply;
mod routes;
mod socket;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::body::BodyBudget;
use self::listeners::Listeners;
use self::operations::{OPERATIONS_MAX, Operations, start_threads};
use self::routes::Service;
use crate::access::Access;
use crate::bash::{COMMANDS_MAX, Commands};
use crate::config::Config;
use crate::connection::{CONNECTIONS_MAX, Connection, Connections, Stream, Timed};
use crate::report;
use crate::workspace::Workspace;

pub use self::operations::{THREADS, THREADS_KEPT};

/// The most time from the end of a response, or from the accept, to the end of the next request's
/// head. It can be short, since a new connection on the same machine costs little.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Response field that says for how long a connection without requests is kept: [`HEAD_TIMEOUT`].
const KEEP_ALIVE: (HeaderName, HeaderValue) = (
    HeaderName::from_static("keep-alive"),
    HeaderValue::from_static("timeout=30"),
);
/// The most bytes of a request's head. hyper also buffers at most about this much of a response,
/// and of a body that is being read.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// How often the Unix socket is checked. Until then, a command that replaced it may get requests.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The most time for responses to finish after a signal; longer than a command usually takes to
/// end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

// Running requests never fill the table of connections, so a new connection always finds a place.
const _: () = assert!(COMMANDS_MAX + OPERATIONS_MAX < CONNECTIONS_MAX);

/// Serves until SIGTERM or SIGINT, then ends every command.
///
/// # Errors
///
/// A sentence that names the object that cannot be opened, and the reason.
pub async fn serve(config: Config, workspace: Workspace) -> Result<(), String> {
    let watch_signal =
        |kind| signal(kind).map_err(|error| format!("cannot watch signals: {error}"));
    let mut terminated = watch_signal(SignalKind::terminate())?;
    let mut interrupted = watch_signal(SignalKind::interrupt())?;
    start_threads()?;
    let (stop, stopping) = watch::channel(false);
    let commands = Commands::new(config.workspace_root.clone(), stopping.clone())
        .map_err(|error| format!("cannot supervise commands: {error}"))?;
    let mut listeners = Listeners::open(&config).await?;
    let service = Arc::new(Service {
        access: Access::new(config.token, config.require_auth),
        bodies: BodyBudget::new(),
        operations: Operations::new(workspace),
        commands,
    });
    let connections = Arc::new(Connections::default());
    let mut tasks = JoinSet::new();
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            client = listeners.accept() => {
                // `None` only if every connection runs a request, which the assertion on
                // `CONNECTIONS_MAX` rules out.
                if let Some(connection) = connections.enter() {
                    let (service, stopping) = (service.clone(), stopping.clone());
                    tasks.spawn(serve_connection(service, client, connection, stopping));
                }
            }
            Some(_) = tasks.join_next() => {}
            _ = checks.tick() => if listeners.are_lost() {
                // A command can replace the socket, since it has the rights of this process, and
                // would then get the requests of others. So no command runs until the socket is
                // made again; at each attempt, since a client on TCP may have begun one.
                connections.evict_all();
                let _none = service.commands.stopped().await;
                listeners.renew();
            },
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
        }
    }
    report("shutting down");
    drop(listeners);
    // Cannot fail: `stopping` is a receiver.
    let _ = stop.send(true);
    let _ = timeout(DRAIN_TIMEOUT, async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
    tasks.shutdown().await;
    service.commands.stopped().await;
    Ok(())
}

/// Serves one connection until it ends.
async fn serve_connection(
    service: Arc<Service>,
    client: Stream,
    connection: Connection,
    mut stopping: watch::Receiver<bool>,
) {
    let (client, connection) = (Arc::new(client), Arc::new(connection));
    let io = TokioIo::new(Timed::new(client.clone()));
    let handler = service_fn(|request| {
        let (service, client, connection) = (service.clone(), client.clone(), connection.clone());
        async move {
            let mut reply = service.respond(request, client, connection).await;
            reply.headers_mut().extend([KEEP_ALIVE]);
            Ok::<_, Infallible>(reply)
        }
    });
    let mut http = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_header_size(BUFFER_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(io, handler)
    );
    // An error, mostly a disconnected peer, ends only this connection.
    tokio::select! {
        _ = http.as_mut() => return,
        () = connection.evicted() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    http.as_mut().graceful_shutdown();
    let _ = http.await;
}
