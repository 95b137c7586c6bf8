//! Forwards DNS questions as DNS over HTTPS (RFC 8484): a POST of the message to the Unix listener.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hickory_proto::op::{Message, MessageType, ResponseCode};
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::OutsideListener;
use super::tcp::serve_each;
use crate::runtime::AcceptBackoff;

/// The most concurrent questions over UDP. More wait in the socket's queue.
const MAX_QUESTIONS: usize = 256;
/// The most concurrent TCP connections. More wait in the listener's queue.
const MAX_CONNECTIONS: usize = 32;
/// Time limit for a response. The server's own limits, such as that of a look-up, are far shorter.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a complete question to arrive over TCP, and again for its response to be written.
/// After that, the connection is closed.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// The longest datagram that is read, in bytes; a longer one is truncated.
const DATAGRAM: usize = 4096;
/// The largest response to a client without EDNS, in bytes.
const PLAIN_DATAGRAM: u16 = 512;
/// Limit on the body of a response, in bytes. A longer one is a failure.
const MAX_MESSAGE: usize = 64 << 10;

const MEDIA_TYPE: &str = "application/dns-message";

/// Answers questions through the Unix listener.
#[derive(Clone)]
pub struct Resolver(pub OutsideListener);

impl Resolver {
    /// Answers questions over UDP.
    pub async fn serve_datagrams(&self, socket: UdpSocket) -> Infallible {
        let socket = Arc::new(socket);
        let free = Arc::new(Semaphore::new(MAX_QUESTIONS));
        let mut backoff = AcceptBackoff::new("the forwarded socket of DNS");
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let permit = Arc::clone(&free).acquire_owned().await;
            let (length, client) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    backoff.after(&error).await;
                    continue;
                }
            };
            backoff.reset();
            let question = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
            let (resolver, socket) = (self.clone(), Arc::clone(&socket));
            tokio::spawn(async move {
                resolver.answer_datagram(&socket, client, question).await;
                drop(permit);
            });
        }
    }

    async fn answer_datagram(&self, socket: &UdpSocket, client: SocketAddr, question: Bytes) {
        if let Some(answer) = self.answer(question.clone()).await
            && let Some(answer) = fitted(&question, answer)
        {
            // Fails if the client has gone.
            let _ = socket.send_to(&answer, client).await;
        }
    }

    /// Answers questions over TCP, one after the other on each connection.
    pub async fn serve_connections(&self, listener: TcpListener) -> Infallible {
        let serve = |stream| {
            let resolver = self.clone();
            async move {
                // After an error the connection is closed, which the client notices.
                let _ = resolver.converse(stream).await;
            }
        };
        let name = "the forwarded listener of DNS";
        serve_each(listener, MAX_CONNECTIONS, name, serve).await
    }

    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let question = timeout(READ_LIMIT, read(&mut stream)).await??;
            let Some(answer) = self.answer(question).await else {
                return Ok(());
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let mut framed = length.to_be_bytes().to_vec();
            framed.extend_from_slice(&answer);
            timeout(READ_LIMIT, stream.write_all(&framed)).await??;
        }
    }

    /// Returns the response to a question: the listener's message if its status is 200, REFUSED if
    /// the status is 429, and SERVFAIL after every other failure. `None` instead of REFUSED or
    /// SERVFAIL if the question is malformed.
    async fn answer(&self, question: Bytes) -> Option<Bytes> {
        match timeout(ANSWER_LIMIT, self.ask(question.clone())).await {
            Ok(Ok((StatusCode::OK, answer))) => Some(answer),
            Ok(Ok((StatusCode::TOO_MANY_REQUESTS, _))) => failure(&question, ResponseCode::Refused),
            _ => failure(&question, ResponseCode::ServFail),
        }
    }

    async fn ask(&self, question: Bytes) -> Result<(StatusCode, Bytes), Unanswered> {
        let stream = self.0.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::post("/dns-query")
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, MEDIA_TYPE)
            .body(Full::new(question))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_MESSAGE);
        Ok((status, body.collect().await?.to_bytes()))
    }
}

type Unanswered = Box<dyn std::error::Error + Send + Sync>;

async fn read(stream: &mut TcpStream) -> io::Result<Bytes> {
    let length = stream.read_u16().await?;
    let mut question = vec![0; usize::from(length)];
    stream.read_exact(&mut question).await?;
    Ok(question.into())
}

/// Turns a question into a response with an error code; `None` if the question is malformed.
fn failure(question: &[u8], code: ResponseCode) -> Option<Bytes> {
    let mut message = Message::from_vec(question).ok()?;
    message.metadata.message_type = MessageType::Response;
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    message.to_vec().ok().map(Bytes::from)
}

/// Fits a response into the client's datagram size. A longer response loses its records and has TC
/// set, so that the client retries over TCP. `None` if a longer response is malformed.
fn fitted(question: &[u8], answer: Bytes) -> Option<Bytes> {
    let most = Message::from_vec(question)
        .ok()
        .and_then(|message| message.edns.map(|edns| edns.max_payload()))
        .unwrap_or(PLAIN_DATAGRAM)
        .max(PLAIN_DATAGRAM);
    if answer.len() <= usize::from(most) {
        return Some(answer);
    }
    let answer = Message::from_vec(&answer).ok()?;
    answer.truncate().to_vec().ok().map(Bytes::from)
}
