//! CONNECT tunnels, by the protocol inside:
//!
//! - TLS for the named host is intercepted. For a passthrough host, it is relayed instead.
//! - HTTP/1 in clear text is served, unless the host is a passthrough host.
//! - Other protocols are denied.

use std::io;
use std::sync::Arc;

use addons::contract::{Authority, Code, Denial, Endpoint, Host, Kind, LiveFlow, Scheme, names};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rustls::server::Accepted;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tokio_rustls::StartHandshake;

use super::connection::Connection;
use super::hello::HelloReader;
use super::io::{ClientIo, Socket};
use super::read_ahead::ReadAhead;
use super::rejected::REJECTION_WINDOW;
use super::serve::{End, exchange, serve_http1, serve_http2};
use super::sniff::{Sniffed, sniff};
use super::{leaf, rejected};
use crate::http::{
    Ingress, Permission, Reply, closing, denied_connect, empty, has_body, raw, relay,
};
use crate::snapshot::Snapshot;
use crate::upstream::{self, UpstreamSocket};

/// A TLS record with the fatal alert `unrecognized_name`, for a client whose server name differs
/// from the tunnel's host.
const UNRECOGNIZED_NAME: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 112];

/// Capacity in bytes for the first read; most ClientHellos are smaller.
const FIRST_READ: usize = 1024;

struct Tunnel {
    connection: Connection,
    /// The snapshot that was in force when the tunnel began.
    snapshot: Arc<Snapshot>,
    live: LiveFlow,
    /// The upstream connection of a host that is not intercepted.
    passthrough: Option<UpstreamSocket>,
}

/// The contents of a tunnel, which determine the next step.
enum TunnelContents<S> {
    /// Serve HTTP in clear text.
    Http(BoxFuture<'static, End>),
    /// Serve HTTP inside the intercepted TLS.
    Https(BoxFuture<'static, End>),
    /// Relay the bytes without decrypting them.
    Bytes(ReadAhead<ClientIo<S>>, UpstreamSocket),
}

/// Answers a CONNECT. The chain judges it before the proxy reads a byte from inside the tunnel or
/// resolves the host.
pub async fn connect<S: Socket>(
    connection: Connection,
    mut request: Request<Incoming>,
) -> Response<Reply> {
    let snapshot = connection.service.snapshot();
    // A reload that forbids the previous request must not end this one.
    *connection.latest_permission.lock() = None;
    let (mut live, malformed) = begin(&connection, &snapshot, &request);
    // `Host` is ignored here: the request line decides, no field of this head is forwarded, and
    // some clients send the proxy's own name.
    let permitted = match malformed {
        Some(denial) => Err(denial.by(names::PROXY)),
        None if has_body(request.headers()) => {
            Err(Denial::malformed("a CONNECT has no body").by(names::PROXY))
        }
        None => {
            let permitting = permit(&connection, &snapshot, &mut live, request.headers());
            connection.idle.held(permitting).await
        }
    };
    connection.idle.end(Instant::now());
    let passthrough = match permitted {
        Ok(passthrough) => passthrough,
        Err(denial) => {
            live.denied(&denial);
            // The client cannot use the connection without a tunnel. Node.js does not close it, so
            // its process would not exit before the idle timeout.
            return closing(denied_connect(&denial, live.id()));
        }
    };
    live.answered(200);
    let tunnel = Box::new(Tunnel {
        connection: connection.clone(),
        snapshot,
        live,
        passthrough,
    });
    let upgrade = hyper::upgrade::on(&mut request);
    connection.service.tasks.spawn(tunnel.run::<S>(upgrade));
    empty(StatusCode::OK)
}

/// Begins the flow of a CONNECT. Also returns a denial if the CONNECT names no valid destination.
fn begin(
    connection: &Connection,
    snapshot: &Snapshot,
    request: &Request<Incoming>,
) -> (LiveFlow, Option<Denial>) {
    let authority = request.uri().authority();
    let named = authority.map_or("", |authority| authority.as_str());
    let (host, port, malformed) = match Authority::parse(named, None) {
        Ok(Authority { host, port }) => (host, port, None),
        Err(error) => (Host::Name("".into()), 0, Some(Denial::malformed(error))),
    };
    let endpoint = Endpoint {
        scheme: Scheme::Https,
        host,
        port,
    };
    let start = connection.start(snapshot, Kind::Tunnel, endpoint);
    connection.idle.begin(start.started.into());
    let mut live = LiveFlow::begin(snapshot.chain(), start);
    live.record().method = Some("CONNECT".into());
    (live, malformed)
}

async fn permit(
    connection: &Connection,
    snapshot: &Snapshot,
    live: &mut LiveFlow,
    headers: &HeaderMap,
) -> Result<Option<UpstreamSocket>, Denial> {
    if let Some(refusal) = &connection.refusal {
        return Err(refusal.clone().by(names::PROXY));
    }
    live.claims(addons::identity::claimed_id(headers));
    let permit = live.chain.tunnel(&mut live.flow).await?;
    connection.is_bound(&live.flow)?;
    let passthrough = &snapshot.config.proxy.tls.passthrough;
    if passthrough.find(live.host()).is_none() {
        // The limit on certificates is checked now, while a denial can still be the response to the
        // CONNECT. It is not checked for port 80, since tunnels to it rarely need a certificate.
        if live.port() != 80 {
            leaf::permit(connection, snapshot, live.host())?;
        }
        return Ok(None);
    }
    let (socket, _) = upstream::open_raw(live, &snapshot.network, &permit).await?;
    Ok(Some(socket))
}

impl Tunnel {
    /// Runs until the client or the upstream closes the tunnel, a timeout passes, the lease ends, a
    /// reload, the security level or the end of a grant revokes the permission, or the process stops.
    async fn run<S: Socket>(mut self: Box<Self>, upgrade: OnUpgrade) {
        let Some(io) = upgrade.await.ok().and_then(io_of::<S>) else {
            return;
        };
        // Boxed, so that an idle tunnel does not keep the kilobytes of its handshake.
        let opened = Box::pin(self.open_in_time(io)).await;
        match opened {
            Ok(Some(TunnelContents::Http(serving))) => {
                serving.await;
            }
            Ok(Some(TunnelContents::Https(serving))) => {
                let end = serving.await;
                if end == End::ByClient
                    && self
                        .connection
                        .idle
                        .handshake_without_request(REJECTION_WINDOW)
                {
                    self.denied(&rejected::after_handshake());
                }
            }
            Ok(Some(TunnelContents::Bytes(io, upstream))) => {
                self.connection.idle.begin(Instant::now());
                let (session, snapshot) = (&self.connection.session, &self.snapshot);
                Box::pin(relay(session, snapshot, &mut self.live, io, upstream)).await;
                self.connection.idle.end(Instant::now());
            }
            Ok(None) => {}
            Err(denial) => self.denied(&denial),
        }
    }

    fn denied(&mut self, denial: &Denial) {
        if denial.code() == Code::ClientRejectedCertificate {
            self.connection.engine.metrics.certificate_rejections.inc();
        }
        self.live.denied(denial);
    }

    /// Opens the tunnel as [`Tunnel::open`] does; `None` also if the lease, a reload, the security
    /// level or the process ends it first.
    async fn open_in_time<S: Socket>(
        &mut self,
        io: ReadAhead<ClientIo<S>>,
    ) -> Result<Option<TunnelContents<S>>, Denial> {
        let connection = self.connection.clone();
        let permitted = Permission::of(&self.live.flow, &self.snapshot);
        tokio::select! {
            biased;
            opened = self.open(io) => opened,
            () = connection.ended(permitted.as_ref()) => Ok(None),
        }
    }

    /// Detects the protocol inside and, if the tunnel is intercepted, completes the TLS handshake.
    /// The detection, the ClientHello and the handshake each have the header timeout. `None` if the
    /// client closed the tunnel before its protocol was known, or sent no byte in time.
    async fn open<S: Socket>(
        &mut self,
        mut io: ReadAhead<ClientIo<S>>,
    ) -> Result<Option<TunnelContents<S>>, Denial> {
        let limit = self.connection.timeouts.header;
        let mut bytes = BytesMut::new();
        let first = timeout(limit, read_first(&mut io, &mut bytes)).await;
        match first {
            Ok(Ok(Sniffed::Tls)) => self.tls(io, bytes).await.map(Some),
            Ok(Ok(Sniffed::Http)) if self.passthrough.is_none() => {
                io.unread(bytes.freeze());
                self.live.complete();
                self.connection.idle.handshake_done(false);
                let (connection, ingress, permitted) = self.ingress(Scheme::Http);
                let serving = serve_http1(connection, ingress, permitted, io, exchange);
                Ok(Some(TunnelContents::Http(Box::pin(serving))))
            }
            Ok(Ok(_)) | Err(_) if !bytes.is_empty() => {
                let sentence = match self.passthrough.is_some() {
                    true => "Protocol not allowed: a tunnel to a passthrough host carries only TLS",
                    false => "Protocol not allowed: a tunnel carries only TLS or HTTP/1",
                };
                let denial = Denial::new(Code::ProtocolNotAllowed, sentence).by(names::PROXY);
                let _ = io.write_all(&raw(&denial)).await;
                let _ = io.shutdown().await;
                Err(denial)
            }
            _ => {
                self.live.complete();
                Ok(None)
            }
        }
    }

    /// The arguments for serving the requests inside: their connection, ingress and permission.
    fn ingress(&self, scheme: Scheme) -> (Connection, Ingress, Option<Permission>) {
        let ingress = Ingress::Tunnel(Endpoint {
            scheme,
            host: self.live.host().clone(),
            port: self.live.port(),
        });
        let permitted = Permission::of(&self.live.flow, &self.snapshot);
        (self.connection.clone(), ingress, permitted)
    }

    async fn tls<S: Socket>(
        &mut self,
        mut io: ReadAhead<ClientIo<S>>,
        mut bytes: BytesMut,
    ) -> Result<TunnelContents<S>, Denial> {
        let limit = self.connection.timeouts.header;
        let hello = timeout(limit, read_hello(&mut io, &mut bytes)).await;
        let Ok(Ok((accepted, rest))) = hello else {
            return Err(Denial::malformed(
                "the ClientHello is malformed or did not arrive in time",
            )
            .by(names::PROXY));
        };
        if !self.name_agrees(&accepted) {
            let _ = io.write_all(&UNRECOGNIZED_NAME).await;
            let _ = io.shutdown().await;
            let sentence = format!(
                "Host mismatch: the TLS server name differs from {}",
                self.live.host()
            );
            return Err(Denial::new(Code::HostMismatch, sentence).by(names::PROXY));
        }
        if let Some(upstream) = self.passthrough.take() {
            io.unread(bytes.freeze());
            return Ok(TunnelContents::Bytes(io, upstream));
        }
        io.unread(rest);
        self.intercept(io, accepted).await
    }

    /// Whether the TLS server name is the tunnel's host. The client may omit the server name if the
    /// tunnel is intercepted, or if the host is an IP address.
    fn name_agrees(&self, accepted: &Accepted) -> bool {
        match accepted.client_hello().server_name() {
            Some(name) => Host::parse(name).is_ok_and(|host| host == *self.live.host()),
            None => self.passthrough.is_none() || self.live.host().name().is_none(),
        }
    }

    async fn intercept<S: Socket>(
        &mut self,
        io: ReadAhead<ClientIo<S>>,
        accepted: Accepted,
    ) -> Result<TunnelContents<S>, Denial> {
        let config = leaf::config(&self.connection, &self.snapshot, self.live.host())?;
        let handshake = StartHandshake::from_parts(accepted, io).into_stream(config);
        let limit = self.connection.timeouts.header;
        let stream = match timeout(limit, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(rejected::why(&error)),
            Err(_elapsed) => {
                let what = "the TLS handshake did not end in time";
                return Err(Denial::malformed(what).by(names::PROXY));
            }
        };
        self.live.complete();
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.connection.idle.handshake_done(is_http2);
        let (connection, ingress, permitted) = self.ingress(Scheme::Https);
        Ok(TunnelContents::Https(if is_http2 {
            Box::pin(serve_http2(connection, ingress, permitted, stream))
        } else {
            // Boxed, since the future that serves the stream reserves space for it several times.
            let stream = ReadAhead::new(Box::new(stream));
            Box::pin(serve_http1(
                connection, ingress, permitted, stream, exchange,
            ))
        }))
    }
}

/// The socket of a CONNECT, with the bytes that hyper has read ahead.
fn io_of<S: Socket>(upgraded: Upgraded) -> Option<ReadAhead<ClientIo<S>>> {
    let parts = upgraded
        .downcast::<TokioIo<ReadAhead<ClientIo<S>>>>()
        .ok()?;
    let mut io = parts.io.into_inner();
    io.unread(parts.read_buf);
    Some(io)
}

/// Reads until the protocol is known.
async fn read_first<S: Socket>(
    io: &mut ReadAhead<ClientIo<S>>,
    bytes: &mut BytesMut,
) -> io::Result<Sniffed> {
    loop {
        let sniffed = sniff(bytes);
        if sniffed != Sniffed::NeedMore {
            return Ok(sniffed);
        }
        bytes.reserve(FIRST_READ);
        if io.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads a whole ClientHello. `bytes` holds all bytes read. Also returns the bytes that the parser
/// has not consumed.
async fn read_hello<S: Socket>(
    io: &mut ReadAhead<ClientIo<S>>,
    bytes: &mut BytesMut,
) -> io::Result<(Accepted, Bytes)> {
    let mut reader = HelloReader::default();
    loop {
        match reader.read(bytes) {
            Ok(Some(accepted)) => {
                let rest = bytes.get(reader.length()..).unwrap_or_default();
                return Ok((accepted, Bytes::copy_from_slice(rest)));
            }
            Ok(None) => {}
            Err(error) => {
                io.write_all(&error.alert).await?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        if io.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a tunnel's task.
    fn size_of_task<T>(_: impl Fn(Box<Tunnel>, OnUpgrade) -> T) -> usize {
        size_of::<T>()
    }

    #[test]
    fn the_task_of_a_tunnel_takes_less_than_half_a_kibibyte() {
        let size = size_of_task(Tunnel::run::<tokio::net::TcpStream>);
        assert!(size < 512, "{size} bytes");
    }
}
