//! A proxy for comparison, made with hudsucker, a library that intercepts TLS. The proxy has no
//! handlers.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::anyhow;
use hudsucker::Proxy;
use hudsucker::certificate_authority::RcgenAuthority;
use hyper::Uri;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

use crate::Peer;
use crate::certificates::Certificates;

/// Capacity of hudsucker's certificate cache, in host names.
const CERTIFICATES: u64 = 1_000;

pub async fn run(peer: Peer, nodelay: bool) -> anyhow::Result<()> {
    let certificates = Certificates(peer.certificates);
    let listener = TcpListener::bind(peer.listen).await?;
    // Accepted sockets inherit the option from the listener.
    SockRef::from(&listener).set_tcp_nodelay(nodelay)?;
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(certificates.client(&[])?)
        .https_only()
        .enable_http1()
        .wrap_connector(ToOrigin(peer.upstream));
    let authority = RcgenAuthority::new(
        certificates.issuer()?,
        CERTIFICATES,
        aws_lc_rs::default_provider(),
    );
    let proxy = Proxy::builder()
        .with_listener(listener)
        .with_ca(authority)
        .with_http_connector(connector)
        .build()?;
    proxy.start().await.map_err(|error| anyhow!("{error}"))
}

/// A connector that connects to the same origin for every name.
#[derive(Clone)]
struct ToOrigin(SocketAddr);

impl Service<Uri> for ToOrigin {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let origin = self.0;
        Box::pin(async move {
            let socket = TcpStream::connect(origin).await?;
            socket.set_nodelay(true)?;
            Ok(TokioIo::new(socket))
        })
    }
}
