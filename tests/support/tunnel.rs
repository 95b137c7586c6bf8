//! Connections to the proxy: raw, through a CONNECT, and with TLS inside.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::exchange::{Reply, read_connect_reply, read_reply};
use super::proxy::Proxy;

const TIMEOUT: Duration = Duration::from_secs(20);

/// TLS inside a tunnel.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A whole response over HTTP/2.
#[derive(Debug)]
pub struct H2Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl Proxy {
    /// Connects to the proxy from 127.0.0.1.
    pub fn dial(&self) -> TcpStream {
        self.dial_from(Ipv4Addr::LOCALHOST)
    }

    /// Connects to the proxy from a loopback address: as the sandbox that is registered there.
    pub fn dial_from(&self, source: Ipv4Addr) -> TcpStream {
        connect_from(source, self.address)
    }

    /// Sends bytes on a new connection and reads one response.
    pub fn exchange(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut stream = self.dial();
        stream.write_all(bytes.as_ref()).unwrap();
        read_reply(&mut stream).unwrap()
    }

    /// Sends a plain HTTP GET in absolute form, with further header lines.
    pub fn get(&self, url: &str, headers: &[&str]) -> Reply {
        let host = url.trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or_default();
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        self.exchange(format!(
            "GET {url} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"
        ))
    }

    /// Sends a CONNECT and returns the response and the connection.
    pub fn connect_from(&self, source: Ipv4Addr, authority: &str) -> (Reply, TcpStream) {
        let mut stream = self.dial_from(source);
        write!(
            stream,
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        )
        .unwrap();
        (read_connect_reply(&mut stream).unwrap(), stream)
    }

    /// Like [`Self::connect_from`], from 127.0.0.1.
    pub fn connect(&self, authority: &str) -> (Reply, TcpStream) {
        self.connect_from(Ipv4Addr::LOCALHOST, authority)
    }

    /// Opens a tunnel; panics unless the response is 200.
    pub fn tunnel(&self, authority: &str) -> TcpStream {
        let (reply, stream) = self.connect(authority);
        assert_eq!(reply.status, 200, "{reply:?}");
        stream
    }

    /// Opens a tunnel to port 443 and does the TLS handshake in it; `sni` may differ from `host`.
    pub fn tls_as(&self, host: &str, sni: &str, alpn: &[&str]) -> io::Result<Tls> {
        let stream = self.tunnel(&format!("{host}:443"));
        handshake(stream, sni, self.tls_config(alpn))
    }

    /// Opens a tunnel to port 443 and does the TLS handshake in it, with the ALPN name `http/1.1`.
    pub fn tls(&self, host: &str) -> Tls {
        self.tls_as(host, host, &["http/1.1"]).unwrap()
    }

    /// A TLS client configuration that trusts only the proxy's CA.
    pub fn tls_config(&self, alpn: &[&str]) -> ClientConfig {
        tls_config_trusting(&std::fs::read(self.ca()).unwrap(), alpn)
    }

    /// Sends a GET over HTTPS. Returns its response, or the response to the CONNECT if that is not
    /// 200.
    pub fn fetch(&self, host: &str, path: &str) -> Reply {
        let (reply, stream) = self.connect(&format!("{host}:443"));
        if reply.status != 200 {
            return reply;
        }
        let mut stream = handshake(stream, host, self.tls_config(&["http/1.1"])).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        read_reply(&mut stream).unwrap()
    }

    /// Sends a request over TLS in a tunnel and reads the response.
    pub fn https(&self, host: &str, head_and_body: impl AsRef<[u8]>) -> Reply {
        let mut stream = self.tls(host);
        stream.write_all(head_and_body.as_ref()).unwrap();
        read_reply(&mut stream).unwrap()
    }

    /// Sends a GET over HTTPS with further header lines; panics unless the tunnel opens.
    pub fn https_get(&self, host: &str, path: &str, headers: &[&str]) -> Reply {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        self.https(
            host,
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"),
        )
    }

    /// Sends one request over HTTP/2 in a tunnel to `host`; `:authority` is that of the request's
    /// URI.
    pub fn h2(&self, host: &str, request: Request<&'static str>) -> hyper::Result<H2Reply> {
        self.h2_upload(host, request.map(|body| Full::new(Bytes::from(body))))
    }

    /// Like [`Self::h2`], with a body of any type.
    pub fn h2_upload<B>(&self, host: &str, request: Request<B>) -> hyper::Result<H2Reply>
    where
        B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let stream = self.tunnel(&format!("{host}:443"));
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls_config(&["h2"])));
        runtime.block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await?;
            tokio::spawn(connection);
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await?;
            Ok(H2Reply {
                status: head.status,
                headers: head.headers,
                trailers: body.trailers().cloned().unwrap_or_default(),
                body: body.to_bytes(),
            })
        })
    }
}

/// Connects from a loopback address; reads have a timeout of 20 s.
pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// A TLS client configuration that trusts only the certificates of a PEM text.
pub fn tls_config_trusting(pem: &[u8], alpn: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// Does the TLS handshake in an open tunnel.
pub fn handshake(mut stream: TcpStream, sni: &str, config: ClientConfig) -> io::Result<Tls> {
    let name = ServerName::try_from(sni.to_owned()).map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::new(config), name);
    let mut session = session.map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(session, stream))
}

/// Asserts that the connection ends or fails before the read timeout, and that no byte arrives.
#[track_caller]
pub fn assert_closes(stream: &mut impl Read) {
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    assert_eq!(String::from_utf8_lossy(&rest), "");
    let timed_out = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
    if let Err(error) = read {
        assert!(
            !timed_out.contains(&error.kind()),
            "the connection is still open"
        );
    }
}
