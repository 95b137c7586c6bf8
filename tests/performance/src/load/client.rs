//! A connection to the origin through the proxy, and requests on it.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Kind, Load, Route};
use crate::certificates;

/// The expected status of a response; [`DENIED`] for [`Kind::Denials`].
const OK: u16 = 200;
const DENIED: u16 = 403;

/// Destination and route of the requests.
pub struct Target {
    kind: Kind,
    route: Route,
    proxy: SocketAddr,
    source: SocketAddr,
    tls: Arc<ClientConfig>,
    host: String,
    hosts: usize,
    first_host: usize,
    size: usize,
}

/// An open connection with HTTP on it.
pub struct Client {
    sender: Sender,
    /// Scheme and host in the URI of a request; empty if only the `Host` field has the host.
    authority: &'static str,
    host: String,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    /// Another client on the same HTTP/2 connection; an error over HTTP/1.1.
    pub fn another(&self) -> anyhow::Result<Self> {
        let Sender::Http2(sender) = &self.sender else {
            bail!("only HTTP/2 has streams");
        };
        Ok(Self {
            sender: Sender::Http2(sender.clone()),
            authority: self.authority,
            host: self.host.clone(),
        })
    }
}

impl Target {
    pub fn new(load: &Load) -> anyhow::Result<Self> {
        let alpn: &[u8] = match load.kind {
            Kind::Streams => b"h2",
            _ => b"http/1.1",
        };
        Ok(Self {
            kind: load.kind,
            route: load.route,
            proxy: load.proxy,
            source: SocketAddr::new(load.source, 0),
            tls: certificates::without_resumption(&load.ca, alpn)?,
            host: load.host.clone(),
            hosts: load.hosts,
            first_host: load.first_host,
            size: load.size,
        })
    }

    /// Opens a connection to a host. `number` selects the host if the load has several.
    pub async fn open(&self, number: usize) -> anyhow::Result<Client> {
        let socket = TcpSocket::new_v4()?;
        socket.set_nodelay(true)?;
        socket.bind(self.source)?;
        let socket = socket.connect(self.proxy).await?;
        if self.kind == Kind::Denials {
            let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
            tokio::spawn(connection);
            return Ok(Client {
                sender: Sender::Http1(sender),
                authority: "http://denied.example.net",
                host: "denied.example.net".to_owned(),
            });
        }
        let host = match self.hosts {
            1 => self.host.clone(),
            hosts => format!("h{}.many.example.com", self.first_host + number % hosts),
        };
        let stream = self.tls(socket, &host).await;
        self.speak(stream.with_context(|| host.clone())?, host)
            .await
    }

    /// Opens a connection like [`Self::open`], and sends one request.
    pub async fn used(&self, number: usize) -> anyhow::Result<Client> {
        let mut client = self.open(number).await?;
        self.request(&mut client).await?;
        Ok(client)
    }

    async fn speak(&self, stream: TlsStream<TcpStream>, host: String) -> anyhow::Result<Client> {
        let io = TokioIo::new(stream);
        let (sender, authority) = if self.kind == Kind::Streams {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            (Sender::Http2(sender), "https://api.example.com")
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection);
            (Sender::Http1(sender), "")
        };
        Ok(Client {
            sender,
            authority,
            host,
        })
    }

    async fn tls(&self, mut socket: TcpStream, host: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        if self.route == Route::Connect {
            connect(&mut socket, host).await?;
        }
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        Ok(connector
            .connect(host.to_owned().try_into()?, socket)
            .await?)
    }

    /// Sends a request and reads its response to the end.
    pub async fn request(&self, client: &mut Client) -> anyhow::Result<()> {
        let request = Request::get(format!("{}/{}", client.authority, self.size));
        let response = match &mut client.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                let request = request.header("host", &client.host).body(Empty::new())?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request.body(Empty::new())?).await?
            }
        };
        self.read(response).await
    }

    async fn read(&self, response: Response<Incoming>) -> anyhow::Result<()> {
        let status = response.status();
        let mut body = response.into_body();
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            read += frame?.data_ref().map_or(0, Bytes::len);
        }
        let as_expected = match self.kind {
            Kind::Denials => status == DENIED,
            _ => status == OK && read == self.size,
        };
        if !as_expected {
            bail!("{status} with {read} bytes");
        }
        Ok(())
    }
}

async fn connect(socket: &mut TcpStream, host: &str) -> anyhow::Result<()> {
    let connect = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
    socket.write_all(connect.as_bytes()).await?;
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if socket.read_buf(&mut head).await? == 0 || head.len() > 4096 {
            bail!("no whole head: {}", String::from_utf8_lossy(&head));
        }
    }
    let status = head.split(|byte| *byte == b' ').nth(1);
    if status != Some(b"200") {
        bail!("refused: {}", String::from_utf8_lossy(&head));
    }
    Ok(())
}
