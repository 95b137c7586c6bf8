//! Accepting connections of sandboxes, whatever happens to single ones.

use std::sync::Arc;

use addons::contract::{Client, Container, LeaseId, Source, fold_address};
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Engine;
use super::connection::Connection;
use super::io::{ClientIo, Socket};
use super::serve::{Handler, exchange, serve_http1};
use super::{origin_form, tunnel};
use crate::http::{Ingress, Reply};
use crate::mcp::Gateway;
use crate::runtime::AcceptBackoff;

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Requests that go on to upstreams.
    Proxy,
    /// MCP clients.
    Gateway,
}

/// Serves sandboxes that are known by their address.
pub async fn serve_tcp(engine: Arc<Engine>, listener: TcpListener, door: Door) {
    let (name, handler): (_, Handler) = match door {
        Door::Proxy => ("a listener of the proxy", on_proxy::<TcpStream>),
        Door::Gateway => ("a listener of the MCP gateway", on_gateway),
    };
    let mut backoff = AcceptBackoff::new(name);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = engine.service.stopping.cancelled() => return,
        };
        match accepted {
            Ok((socket, peer)) => {
                backoff.reset();
                // Without it small writes wait for the peer's delayed acknowledgement.
                let _ = socket.set_nodelay(true);
                let client = Client {
                    source: Some(Source::Address(fold_address(peer.ip()))),
                    peer: Some(peer),
                };
                spawn(&engine, socket, client, None, handler);
            }
            Err(error) => backoff.after(&error).await,
        }
    }
}

/// Serves the one container that a listener belongs to, until its lease ends.
pub async fn serve_unix(engine: Arc<Engine>, listener: UnixListener, container: Arc<Container>) {
    let mut backoff = AcceptBackoff::new("the listener of a container");
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = engine.service.stopping.cancelled() => return,
            () = container.ended().cancelled() => return,
        };
        match accepted {
            Ok((socket, _)) => {
                backoff.reset();
                let client = Client {
                    source: Some(Source::Listener(container.id.clone())),
                    peer: None,
                };
                let lease = Some(container.lease);
                spawn(&engine, socket, client, lease, on_own_listener);
            }
            Err(error) => backoff.after(&error).await,
        }
    }
}

/// Serves a connection. Who comes in by the listener of a lease that was replaced meanwhile does
/// not become its successor.
fn spawn<S: Socket>(
    engine: &Arc<Engine>,
    socket: S,
    client: Client,
    lease: Option<LeaseId>,
    handler: Handler,
) {
    let snapshot = engine.service.snapshot();
    let Some((connection, runtime)) = Connection::admit(Arc::clone(engine), &snapshot, client)
    else {
        return;
    };
    let bound = connection.container.as_ref().map(|bound| bound.lease);
    if lease.is_some() && bound.is_some() && bound != lease {
        return;
    }
    let arrive = match socket.leave() {
        Ok(arrive) => arrive,
        Err(error) => return lost(&error),
    };
    let serving = async move {
        let socket = match arrive() {
            Ok(socket) => socket,
            Err(error) => return lost(&error),
        };
        let io = ClientIo::new(socket, Arc::clone(&connection.idle));
        serve_http1(connection, Ingress::Plain, None, io, handler).await;
    };
    engine.service.tasks.spawn_on(serving, &runtime);
}

/// Answers a request to a proxy: a CONNECT, or one in absolute form.
fn on_proxy<S: Socket>(
    connection: &Connection,
    ingress: &Ingress,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    if request.method() == Method::CONNECT {
        tunnel::connect::<S>(connection.clone(), request)
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

/// Answers a request on a container's own listener, which also takes requests to itself.
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

fn lost(error: &std::io::Error) {
    tracing::warn!(%error, "cannot serve a connection that was accepted");
}
