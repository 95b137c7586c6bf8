//! Accepts client connections on each kind of listener.

use std::sync::Arc;

use addons::contract::{Client, Container, Delegation, Denial, LeaseId, Source, fold_address};
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::connection::Connection;
use super::io::{ClientIo, Socket};
use super::read_ahead::ReadAhead;
use super::serve::{Handler, exchange, serve_http1};
use super::{origin_form, tunnel};
use crate::http::{Ingress, OriginRequest, Reply};
use crate::mcp::Gateway;
use crate::runtime::AcceptBackoff;

/// The service behind a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// The proxy for requests to upstreams.
    Proxy,
    /// The gateway for MCP clients.
    Gateway,
}

/// Serves containers that are identified by their address, until the process stops.
pub async fn serve_tcp(engine: Arc<Engine>, listener: TcpListener, kind: ListenerKind) {
    let (name, handler): (_, Handler) = match kind {
        ListenerKind::Proxy => ("a listener of the proxy", on_proxy::<TcpStream>),
        ListenerKind::Gateway => ("a listener of the MCP gateway", on_gateway),
    };
    let mut backoff = AcceptBackoff::new(name);
    let accepting = async {
        loop {
            let (socket, peer) = backoff.retry(|| listener.accept()).await;
            // Otherwise small writes wait for the peer's delayed acknowledgement.
            let _ = socket.set_nodelay(true);
            let client = Client {
                source: Some(Source::Address(fold_address(peer.ip()))),
                peer: Some(peer),
            };
            spawn(&engine, socket, client, None, handler, kind);
        }
    };
    let stopping = &engine.service.stopping;
    stopping.run_until_cancelled(accepting).await;
}

/// Serves the container that owns the listener, until its lease ends or the process stops.
pub async fn serve_unix(engine: Arc<Engine>, listener: UnixListener, container: Arc<Container>) {
    let mut backoff = AcceptBackoff::new("the listener of a container");
    let accepting = async {
        loop {
            let (socket, _) = backoff.retry(|| listener.accept()).await;
            let client = Client {
                source: Some(Source::Listener(container.id.clone())),
                peer: None,
            };
            let lease = Some(container.lease);
            let kind = ListenerKind::Proxy;
            spawn(&engine, socket, client, lease, on_own_listener, kind);
        }
    };
    tokio::select! {
        () = accepting => {}
        () = engine.service.stopping.cancelled() => {}
        () = container.ended().cancelled() => {}
    }
}

/// Serves the process of an MCP server that the appliance runs for a container, until the lease
/// ends, `closed` is cancelled or the appliance stops. The MCP server may reach the hosts that its
/// configuration lists, and resolve their names.
pub async fn serve_delegated(
    engine: Arc<Engine>,
    listener: UnixListener,
    delegation: Arc<Delegation>,
    closed: CancellationToken,
) {
    let mut backoff = AcceptBackoff::new("the listener of an MCP server");
    let accepting = async {
        loop {
            let (socket, _) = backoff.retry(|| listener.accept()).await;
            let snapshot = engine.service.snapshot();
            let admitted = Connection::admit_delegated(Arc::clone(&engine), &snapshot, &delegation);
            if let Some(admitted) = admitted {
                serve(
                    &engine,
                    socket,
                    admitted,
                    on_mcp_server,
                    ListenerKind::Proxy,
                );
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = engine.service.stopping.cancelled() => {}
        () = delegation.lease.ended().cancelled() => {}
        () = closed.cancelled() => {}
    }
}

/// Serves a connection, or closes it if too many are open. A connection on the listener of a
/// replaced lease is closed too: it must not be served under the new lease.
fn spawn<S: Socket>(
    engine: &Arc<Engine>,
    socket: S,
    client: Client,
    lease: Option<LeaseId>,
    handler: Handler,
    kind: ListenerKind,
) {
    let snapshot = engine.service.snapshot();
    let Some(admitted) = Connection::admit(Arc::clone(engine), &snapshot, client) else {
        return;
    };
    let bound = admitted.0.container.as_ref().map(|bound| bound.lease);
    if lease.is_some() && bound.is_some() && bound != lease {
        return;
    }
    serve(engine, socket, admitted, handler, kind);
}

/// Serves a connection on its assigned thread.
fn serve<S: Socket>(
    engine: &Arc<Engine>,
    socket: S,
    (connection, runtime): (Connection, Handle),
    handler: Handler,
    kind: ListenerKind,
) {
    let arrive = match socket.leave() {
        Ok(arrive) => arrive,
        Err(error) => return log_lost(&error),
    };
    let serving = async move {
        let socket = match arrive() {
            Ok(socket) => socket,
            Err(error) => return log_lost(&error),
        };
        let idle = Arc::clone(&connection.idle);
        let io = ReadAhead::new(match kind {
            ListenerKind::Gateway => ClientIo::silent(socket, idle),
            ListenerKind::Proxy => ClientIo::new(socket, idle),
        });
        serve_http1(connection, Ingress::Plain, None, io, handler).await;
    };
    engine.service.tasks.spawn_on(serving, &runtime);
}

/// Answers a request to a proxy: a CONNECT, or a request in absolute form.
fn on_proxy<S: Socket>(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    if request.method() == Method::CONNECT {
        Box::pin(tunnel::connect::<S>(connection.clone(), request))
    } else {
        exchange(connection, ingress, request)
    }
}

/// Answers an MCP client.
fn on_gateway(
    connection: &Connection,
    _ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    let session = Arc::clone(&connection.session);
    connection.engine.gateway.handle(session, request)
}

/// Answers a request on a container's own listener, which also takes DNS over HTTPS and MCP in
/// origin form.
fn on_own_listener(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    match request.uri().authority() {
        Some(_) => on_proxy::<UnixStream>(connection, ingress, request),
        None if Gateway::has(request.uri().path()) => on_gateway(connection, ingress, request),
        None => origin_form::answer(connection, request),
    }
}

/// Answers a request of an MCP server's process: a request to a proxy, or DNS over HTTPS. The
/// gateway is not served here: a tool must not call other tools.
fn on_mcp_server(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    match request.uri().authority() {
        Some(_) => on_proxy::<UnixStream>(connection, ingress, request),
        None if request.uri().path() == "/dns-query" => origin_form::answer(connection, request),
        None => {
            let request = OriginRequest::begin(Arc::clone(&connection.session), request);
            let denial = Denial::malformed(
                "in origin form, the listener of an MCP server takes only POST /dns-query",
            );
            Box::pin(async move { request.deny(denial) })
        }
    }
}

fn log_lost(error: &std::io::Error) {
    tracing::warn!(%error, "cannot move an accepted connection to its thread");
}
