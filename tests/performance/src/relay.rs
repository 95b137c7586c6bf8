//! Minimal relays for comparison: hyper on both sides, one upstream connection for each client
//! connection, and no decisions. One terminates TLS on both sides of a CONNECT tunnel; the other
//! relays plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self as client, SendRequest};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Peer;
use crate::certificates::Certificates;

/// The upstream connection of one client connection.
type Sender = Arc<Mutex<Option<SendRequest<Incoming>>>>;

struct Relay {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    upstream: SocketAddr,
}

pub async fn run(peer: Peer) -> anyhow::Result<()> {
    let certificates = Certificates(peer.certificates);
    let relay = Arc::new(Relay {
        server: certificates.server(&[b"http/1.1"])?,
        client: Arc::new(certificates.client(&[b"http/1.1"])?),
        upstream: peer.upstream,
    });
    let listener = TcpListener::bind(peer.listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let relay = Arc::clone(&relay);
        tokio::spawn(async move {
            let service = service_fn(move |request| connect(Arc::clone(&relay), request));
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .with_upgrades()
                .await;
        });
    }
}

async fn connect(
    relay: Arc<Relay>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    let host = request.uri().host().unwrap_or_default().to_owned();
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&relay.server));
        let Ok(stream) = acceptor.accept(TokioIo::new(upgraded)).await else {
            return;
        };
        let sender = Sender::default();
        let service = service_fn(move |request| {
            forward(
                Arc::clone(&relay),
                host.clone(),
                Arc::clone(&sender),
                request,
            )
        });
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    Ok(Response::new(Empty::new()))
}

async fn forward(
    relay: Arc<Relay>,
    host: String,
    sender: Sender,
    request: Request<Incoming>,
) -> anyhow::Result<Response<BoxBody<Bytes, hyper::Error>>> {
    let connect = async {
        let socket = TcpStream::connect(relay.upstream).await?;
        socket.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(&relay.client));
        Ok(connector.connect(host.try_into()?, socket).await?)
    };
    send(sender, connect, request).await
}

/// Relays plain HTTP.
pub async fn run_plain(listen: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let sender = Sender::default();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let connect = async move {
                    let socket = TcpStream::connect(upstream).await?;
                    socket.set_nodelay(true)?;
                    Ok(socket)
                };
                send(Arc::clone(&sender), connect, request)
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

/// Sends a request on the upstream connection; connects first if there is none or it has closed.
async fn send<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    sender: Sender,
    connect: impl Future<Output = anyhow::Result<S>>,
    request: Request<Incoming>,
) -> anyhow::Result<Response<BoxBody<Bytes, hyper::Error>>> {
    let mut sender = sender.lock().await;
    if sender.as_ref().is_none_or(SendRequest::is_closed) {
        let (fresh, connection) = client::handshake(TokioIo::new(connect.await?)).await?;
        tokio::spawn(connection);
        *sender = Some(fresh);
    }
    let sender = sender
        .as_mut()
        .ok_or_else(|| anyhow::anyhow!("no connection"))?;
    sender.ready().await?;
    Ok(sender.send_request(request).await?.map(|body| body.boxed()))
}
