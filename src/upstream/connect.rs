//! Opens a connection: resolve, let the chain judge the addresses, dial, verify the certificate.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    Code, Container, Denial, Endpoint, Host, LiveFlow, ResolvePermit, Scheme, Stage,
};
use futures_util::FutureExt;
use http::HeaderValue;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls_pki_types::{DnsName, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::http1_io::Http1Io;
use super::{Driver, Home, Http1, Http2, MAX_HEADER_LINES, Network, Upstream, UpstreamSocket};

/// HTTP/2 receive window of a stream, in bytes: enough for a fast download at usual round-trip
/// times.
const STREAM_WINDOW: u32 = 1 << 20;
/// HTTP/2 receive window of a connection, in bytes.
const CONNECTION_WINDOW: u32 = 2 << 20;
/// Silence of a connection with open streams before an HTTP/2 PING. Without the PING, every further
/// request to the endpoint would be sent on a connection that died without a FIN.
const PING_AFTER: Duration = Duration::from_secs(20);
/// Limit for the acknowledgement of the PING. After that, the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of a response's header list over HTTP/2, equal to the default of
/// `limits.max_header_bytes` for requests. A request whose response exceeds it fails.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// Why a connection cannot be used.
pub enum DialError {
    /// The upstream refused every ALPN protocol that was offered, so it is assumed to speak HTTP/2
    /// only.
    OnlyHttp2,
    Denied(Denial),
}

impl DialError {
    /// Returns the denial for a caller that tries no other protocol.
    pub fn into_denial(self) -> Denial {
        match self {
            Self::OnlyHttp2 => {
                Denial::new(Code::UpstreamTls, "The upstream does not speak HTTP/1.1")
            }
            Self::Denied(denial) => denial,
        }
    }
}

impl From<Denial> for DialError {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

/// Opens a TCP connection for a flow: resolves the permitted host once, and dials the addresses
/// that the chain permits.
pub async fn open_raw(
    live: &mut LiveFlow,
    network: &Network,
    permit: &ResolvePermit,
) -> Result<(UpstreamSocket, SocketAddr), Denial> {
    let addresses = network.resolver.lookup(permit).await?;
    let permit = live.chain.dial(&mut live.flow, addresses).await?;
    let (socket, address) = super::dial(&permit, network.connect_timeout, &network.sockets).await?;
    live.record().upstream_addr = Some(address);
    Ok((socket, address))
}

/// Opens an HTTP connection for a flow. The upstream chooses one of the protocols that `config`
/// offers. The connection ends with the lease of `owner` if it is HTTP/2, or if
/// [`Upstream::detach`] has moved it to a separate task. With `reads_long_heads`, it reads up to
/// [`MAX_HEADER_LINES`] over HTTP/1.1.
pub async fn open_http(
    owner: &Container,
    live: &mut LiveFlow,
    network: &Network,
    permit: &ResolvePermit,
    config: Arc<ClientConfig>,
    reads_long_heads: bool,
) -> Result<Upstream, DialError> {
    let endpoint = live.endpoint().ok_or_else(Denial::internal)?.clone();
    let ended = owner.ended().clone();
    let (socket, address) = open_raw(live, network, permit).await?;
    let (home, generation) = (socket.home(), network.generation);
    let long = reads_long_heads;
    if endpoint.scheme == Scheme::Http {
        let spoken = speak_http1(socket, home, address, ended, endpoint, generation, long).await?;
        return Ok(Upstream::Http1(spoken));
    }
    let stream = handshake(network, &endpoint.host, socket, config).await?;
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let spoken = speak_http2(stream, address, ended, &endpoint.host).await?;
        return Ok(Upstream::Http2(Box::new(spoken)));
    }
    let spoken = speak_http1(stream, home, address, ended, endpoint, generation, long).await?;
    Ok(Upstream::Http1(spoken))
}

/// Does the TLS handshake within the connect timeout, and verifies the upstream's certificate for
/// the host.
pub async fn handshake(
    network: &Network,
    host: &Host,
    socket: UpstreamSocket,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<UpstreamSocket>, DialError> {
    let connecting = TlsConnector::from(config).connect(server_name(host)?, socket);
    match timeout(network.connect_timeout, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(tls_failure(host, &error)),
        Err(_elapsed) => {
            let sentence = format!("TLS handshake with {host} timed out");
            let denial = Denial::new(Code::UpstreamTimeout, sentence);
            Err(denial.at(Stage::Tls).into())
        }
    }
}

fn server_name(host: &Host) -> Result<ServerName<'static>, Denial> {
    match host {
        Host::Name(name) => DnsName::try_from(name.to_string())
            .map(ServerName::DnsName)
            .map_err(|_| Denial::malformed("the host name is not valid in a certificate")),
        Host::Address(address) => Ok(ServerName::IpAddress((*address).into())),
    }
}

/// Returns the error for a failed handshake. The denial names the host, the cause and, for the usual
/// faults of servers, what to change.
fn tls_failure(host: &Host, error: &std::io::Error) -> DialError {
    let cause = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let why = match cause {
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)) => {
            return DialError::OnlyHttp2;
        }
        Some(cause) => tls_fault(cause),
        None => "the connection was closed".into(),
    };
    let sentence = format!("TLS handshake with {host} failed: {why}");
    Denial::new(Code::UpstreamTls, sentence)
        .at(Stage::Tls)
        .into()
}

/// Describes a failed handshake: what is wrong, and what to do if the cause is a usual one.
fn tls_fault(cause: &rustls::Error) -> Cow<'static, str> {
    use rustls::{AlertDescription as Alert, CertificateError, Error};
    match cause {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no CA that the proxy trusts has issued the server's certificate: add the CA to tls.upstream_ca in proxy.yaml, or let the server send its intermediate certificates".into()
        }
        // webpki's error, whose type rustls does not export.
        Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string() == "CaUsedAsEndEntity" =>
        {
            "the server's certificate is a CA's (CA:TRUE, as `openssl req -x509` makes it), which must not serve a host: make it with CA:FALSE, or sign a certificate for the server with this CA".into()
        }
        Error::InvalidCertificate(_) => cause.to_string().into(),
        Error::AlertReceived(Alert::HandshakeFailure | Alert::InsufficientSecurity) => {
            "the server accepts none of the proxy's ciphers (alert handshake_failure): it may offer only CBC ciphers or RSA key exchange, which the proxy does not speak. Enable TLS 1.3, or ECDHE with AES-GCM or ChaCha20-Poly1305, on the server, or list the host under tls.passthrough in proxy.yaml".into()
        }
        Error::AlertReceived(Alert::ProtocolVersion) | Error::PeerIncompatible(_) => format!(
            "the server does not speak TLS 1.2 or 1.3 as the proxy does ({cause}): enable TLS 1.3 on the server, or list the host under tls.passthrough in proxy.yaml"
        )
        .into(),
        Error::InvalidMessage(_) => {
            "the server does not speak TLS at this port".into()
        }
        cause => format!("the handshake failed: {cause}").into(),
    }
}

pub(super) async fn speak_http1<T>(
    stream: T,
    home: Home,
    address: SocketAddr,
    ended: CancellationToken,
    endpoint: Endpoint,
    generation: u64,
    reads_long_heads: bool,
) -> Result<Box<Http1>, Denial>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let received = Arc::default();
    let io = TokioIo::new(Http1Io::new(stream, Arc::clone(&received)));
    let mut builder = http1::Builder::new();
    if reads_long_heads {
        builder.max_headers(MAX_HEADER_LINES);
    }
    let (sender, connection) = builder
        .handshake(io)
        .await
        .map_err(|_| closed_in_handshake(&endpoint.host))?;
    let host = HeaderValue::try_from(endpoint.authority()).map_err(|_| Denial::internal())?;
    let driver = Driver::new(connection.with_upgrades().map(drop), ended);
    Ok(Box::new(Http1 {
        sender,
        endpoint,
        generation,
        address,
        host,
        idle_since: Instant::now(),
        keep_alive: None,
        driver,
        home,
        received,
        reads_long_heads,
        timer: None,
    }))
}

async fn speak_http2<T>(
    stream: T,
    address: SocketAddr,
    ended: CancellationToken,
    host: &Host,
) -> Result<Http2, Denial>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADER_LIST)
        .handshake(TokioIo::new(stream))
        .await;
    let (sender, connection) = handshake.map_err(|_| closed_in_handshake(host))?;
    tokio::spawn(ended.run_until_cancelled_owned(connection));
    Ok(Http2 {
        sender,
        address,
        handles: Arc::default(),
    })
}

fn closed_in_handshake(host: &Host) -> Denial {
    let sentence = format!("{host} closed the connection");
    Denial::new(Code::UpstreamUnreachable, sentence).at(Stage::Connect)
}
