//! An origin with minimal CPU cost. The body of the response to `/N` has N bytes.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;

/// Bytes of the largest body.
const LARGEST: usize = 100 << 20;

pub async fn run(listen: SocketAddr, certificates: &Certificates) -> anyhow::Result<()> {
    let tls = TlsAcceptor::from(certificates.server(&[b"h2", b"http/1.1"])?);
    let bytes = Bytes::from(vec![b'x'; LARGEST]);
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (tls, bytes) = (tls.clone(), bytes.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(socket).await else {
                return;
            };
            let service = service_fn(move |request: Request<Incoming>| {
                let bytes = bytes.clone();
                async move {
                    let size = request
                        .uri()
                        .path()
                        .trim_start_matches('/')
                        .parse()
                        .unwrap_or(1024);
                    Ok::<_, Infallible>(Response::new(Full::new(bytes.slice(..LARGEST.min(size)))))
                }
            });
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let io = TokioIo::new(stream);
            if http2 {
                let _ = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(io, service)
                    .await;
            } else {
                let _ = http1::Builder::new().serve_connection(io, service).await;
            }
        });
    }
}
