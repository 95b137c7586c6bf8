//! Sends the requests and DNS messages of the corpus. Reads the responses byte for byte, except
//! over HTTP/2.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use socket2::{Domain, Socket, Type};
use tokio::runtime::Runtime;

use super::request_spec::{Protocol, RequestSpec, readable};
use crate::support::{Proxy, Tls, handshake, read_connect_reply, read_reply};

type H2Body = UnsyncBoxBody<Bytes, Infallible>;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection for requests, or the response that denied its tunnel.
pub enum Connection {
    Plain(TcpStream),
    Tls(Box<Tls>),
    Http2(Http2),
    /// The response to a CONNECT that was denied.
    Refused(String),
}

/// HTTP/2 in a tunnel; a thread of `runtime` drives the connection.
pub struct Http2 {
    runtime: Runtime,
    sender: http2::SendRequest<H2Body>,
}

/// A reader that keeps the bytes that are read through it.
struct Tee<'s, S> {
    stream: &'s mut S,
    read: Vec<u8>,
}

impl<S: Read> Read for Tee<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.read.extend(&buffer[..count]);
        Ok(count)
    }
}

impl Connection {
    /// Connects, and opens a tunnel if the request needs one.
    pub fn open(proxy: &Proxy, spec: &RequestSpec) -> Self {
        let mut stream = proxy.dial_from(spec.from);
        if matches!(spec.protocol, Protocol::Plain | Protocol::Connect) {
            return Self::Plain(stream);
        }
        let authority = spec.tunnel();
        let head = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut tee = Tee {
            stream: &mut stream,
            read: Vec::new(),
        };
        let reply = read_connect_reply(&mut tee).unwrap();
        if reply.status != 200 {
            return Self::Refused(readable(&tee.read));
        }
        match spec.protocol {
            Protocol::Http2 => Self::Http2(Http2::open(proxy, &spec.host, stream)),
            _ => {
                let config = proxy.tls_config(&["http/1.1"]);
                let tls = handshake(stream, &spec.host, config).unwrap();
                Self::Tls(Box::new(tls))
            }
        }
    }

    /// Sends a request and returns the response as text.
    pub fn send(&mut self, spec: &RequestSpec) -> String {
        match self {
            Self::Plain(stream) => {
                exchange(stream, &spec.bytes(), spec.protocol == Protocol::Connect)
            }
            Self::Tls(stream) => exchange(stream.as_mut(), &spec.bytes(), false),
            Self::Http2(connection) => connection.exchange(spec),
            Self::Refused(answer) => format!("the tunnel was refused\n{answer}"),
        }
    }
}

/// Sends bytes and returns the response as text, with the kind of error if reading it failed.
/// `connects` is true for a CONNECT, whose response of 200 has no body.
pub fn exchange<S: Read + Write>(stream: &mut S, bytes: &[u8], connects: bool) -> String {
    // The proxy may close the connection after a denial, while the body is still being sent.
    let _ = stream.write_all(bytes);
    let mut tee = Tee {
        stream,
        read: Vec::new(),
    };
    let reply = match connects {
        true => read_connect_reply(&mut tee),
        false => read_reply(&mut tee),
    };
    match reply {
        Ok(_) => readable(&tee.read),
        Err(error) => format!("{}\n[{:?}]\n", readable(&tee.read), error.kind()),
    }
}

impl Http2 {
    fn open(proxy: &Proxy, host: &str, stream: TcpStream) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(proxy.tls_config(&["h2"])));
        let sender = runtime.block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            let io = TokioIo::new(stream);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    fn exchange(&mut self, spec: &RequestSpec) -> String {
        let named = spec.authority.map_or(spec.destination(), str::to_owned);
        let mut request = http::Request::builder()
            .method(spec.method)
            .uri(format!("https://{named}{}", spec.path));
        for (name, value) in &spec.fields {
            request = request.header(*name, value);
        }
        let body = Bytes::from(spec.body.clone());
        let body: H2Body = match spec.announced {
            None => Full::new(body).boxed_unsync(),
            Some(_) => {
                let sent = stream::iter([Ok(Frame::data(body))]).chain(stream::pending());
                StreamBody::new(sent).boxed_unsync()
            }
        };
        if let Some(length) = spec.announced {
            request = request.header("content-length", length);
        }
        let request = request.body(body).unwrap();
        let sender = &mut self.sender;
        self.runtime.block_on(async {
            let sending = tokio::time::timeout(TIMEOUT, sender.send_request(request));
            let response = match sending.await.unwrap() {
                Ok(response) => response,
                Err(error) => return format!("[{error:?}]\n"),
            };
            let (head, body) = response.into_parts();
            let mut shown = format!("HTTP/2 {}\n", head.status.as_u16());
            for (name, value) in &head.headers {
                let _ = writeln!(shown, "{name}: {}", readable(value.as_bytes()));
            }
            let body = body.collect().await.map(|body| body.to_bytes());
            let _ = match body {
                Ok(body) => write!(shown, "\n{}", readable(&body)),
                Err(error) => write!(shown, "\n[{error:?}]\n"),
            };
            shown
        })
    }
}

/// Reads until the connection ends; returns the bytes as text, and `closed` or the kind of error
/// that ended it.
pub fn rest(stream: &mut impl Read) -> String {
    let mut read = Vec::new();
    let ended = match stream.read_to_end(&mut read) {
        Ok(_) => "closed".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    };
    format!("{}\n[{ended}]\n", readable(&read))
}

/// A DNS message with its source address and transport.
pub struct Question {
    pub from: Ipv4Addr,
    pub tcp: bool,
    pub message: Vec<u8>,
}

impl Question {
    /// A query for the A records of a name.
    pub fn of(from: Ipv4Addr, tcp: bool, name: &str) -> Self {
        let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.extend(b"\0\0\x01\0\x01");
        Self { from, tcp, message }
    }

    /// Sends the message and returns the response as [`header`] shows it, or the kind of error.
    pub fn send(&self, proxy: &Proxy) -> String {
        let answer = match self.tcp {
            true => self.over_tcp(proxy.dns),
            false => self.over_udp(proxy.dns),
        };
        match answer {
            Ok(answer) => header(&answer),
            Err(error) => format!("[{:?}]\n", error.kind()),
        }
    }

    fn over_udp(&self, server: SocketAddr) -> io::Result<Vec<u8>> {
        let socket = UdpSocket::bind((self.from, 0))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.send_to(&self.message, server)?;
        let mut answer = vec![0; 4096];
        let length = socket.recv(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    fn over_tcp(&self, server: SocketAddr) -> io::Result<Vec<u8>> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((self.from, 0)).into())?;
        socket.connect(&server.into())?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIMEOUT))?;
        let length = u16::try_from(self.message.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length, self.message.as_slice()].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    /// The transcript of the message.
    pub fn shown(&self) -> String {
        format!("from {}\n> {}\n", self.from, self.message.escape_ascii())
    }
}

/// Response code, flags and counts (RFC 1035, section 4.1.1), and the whole message.
pub fn header(answer: &[u8]) -> String {
    let word = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    format!(
        "response code {}\nflags {:#06x}\nquestions {}, answers {}, authorities {}, additionals {}\n{}\n",
        word(2) & 15,
        word(2) & !15,
        word(4),
        word(6),
        word(8),
        word(10),
        answer.escape_ascii()
    )
}
