//! HTTP/1.1 client for the gateway, with a connection pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::endpoint::{Address, Endpoint};

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit on the idle connections that are kept. Further ones are closed.
const MAX_IDLE: usize = 8;
/// A connection that was idle for longer is not reused: the gateway may be closing it.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Limit on the size of a message in either direction, in bytes. A longer message is an error. The
/// gateway's default limit is far lower.
pub const MAX_MESSAGE: usize = 64 << 20;

const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("unified-proxy-mcp/", env!("CARGO_PKG_VERSION")));

/// Why a request has no response.
#[derive(Debug, Error)]
pub enum HttpError {
    #[error(
        "cannot reach the gateway at {endpoint}: {reason}: is unified-proxy running, and is this \
         the container's gateway? Name another one with --url"
    )]
    Unreachable { endpoint: String, reason: String },
    #[error("the connection to the gateway at {endpoint} failed: {reason}")]
    Broken { endpoint: String, reason: String },
    #[error("the gateway's answer is longer than {MAX_MESSAGE} bytes")]
    TooLong,
}

type Sender = SendRequest<Full<Bytes>>;

/// Sends HTTP requests to one gateway.
pub struct HttpClient {
    endpoint: Endpoint,
    idle: Mutex<Vec<(Sender, Instant)>>,
}

/// A response with its body. Dropping this value closes the connection; only
/// [`HttpResponse::whole`] returns the connection to the pool.
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    sender: Sender,
    client: Arc<HttpClient>,
}

impl HttpClient {
    pub fn new(endpoint: Endpoint) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            idle: Mutex::default(),
        })
    }

    /// Posts a message.
    pub async fn post(
        self: &Arc<Self>,
        fields: HeaderMap,
        message: Bytes,
    ) -> Result<HttpResponse, HttpError> {
        let mut request = self.request(Method::POST, fields, message)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        self.send(request).await
    }

    /// Requests a stream of events.
    pub async fn stream(self: &Arc<Self>, fields: HeaderMap) -> Result<HttpResponse, HttpError> {
        let mut request = self.request(Method::GET, fields, Bytes::new())?;
        request.headers_mut().insert(ACCEPT, STREAM);
        self.send(request).await
    }

    /// Sends the DELETE that ends a session.
    pub async fn delete(self: &Arc<Self>, fields: HeaderMap) -> Result<HttpResponse, HttpError> {
        let request = self.request(Method::DELETE, fields, Bytes::new())?;
        self.send(request).await
    }

    fn request(
        &self,
        method: Method,
        fields: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, HttpError> {
        let host = HeaderValue::from_str(&self.endpoint.authority);
        let request = Request::builder()
            .method(method)
            .uri(&*self.endpoint.path)
            .body(Full::new(body));
        let (Ok(host), Ok(mut request)) = (host, request) else {
            return Err(self.unreachable("the URL is not valid in a request"));
        };
        let headers = request.headers_mut();
        *headers = fields;
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, AGENT);
        Ok(request)
    }

    async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
    ) -> Result<HttpResponse, HttpError> {
        while let Some(mut sender) = self.take_idle().await {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.response(response, sender)),
                Err(mut error) => match error.take_message() {
                    // The gateway closed the idle connection before the request was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(error.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.broken(error))?;
        Ok(self.response(response, sender))
    }

    async fn take_idle(&self) -> Option<Sender> {
        loop {
            let (mut sender, since) = self.idle.lock().pop()?;
            if since.elapsed() < IDLE_TIME && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn response(self: &Arc<Self>, response: Response<Incoming>, sender: Sender) -> HttpResponse {
        let (head, body) = response.into_parts();
        HttpResponse {
            status: head.status,
            headers: head.headers,
            body,
            sender,
            client: Arc::clone(self),
        }
    }

    async fn connect(&self) -> Result<Sender, HttpError> {
        let connecting = async {
            match &self.endpoint.address {
                Address::Tcp(host, port) => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await;
                    let stream = stream.map_err(|error| self.unreachable(error))?;
                    let _ = stream.set_nodelay(true);
                    self.shake_hands(stream).await
                }
                Address::Unix(path) => {
                    let stream = UnixStream::connect(path).await;
                    self.shake_hands(stream.map_err(|error| self.unreachable(error))?)
                        .await
                }
            }
        };
        let connected = timeout(CONNECT_TIMEOUT, connecting).await;
        let seconds = CONNECT_TIMEOUT.as_secs();
        let late = format_args!("no connection within {seconds} seconds");
        connected.unwrap_or_else(|_| Err(self.unreachable(late)))
    }

    async fn shake_hands(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Sender, HttpError> {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unreachable(error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn unreachable(&self, reason: impl ToString) -> HttpError {
        HttpError::Unreachable {
            endpoint: self.endpoint.to_string(),
            reason: reason.to_string(),
        }
    }

    fn broken(&self, reason: impl ToString) -> HttpError {
        HttpError::Broken {
            endpoint: self.endpoint.to_string(),
            reason: reason.to_string(),
        }
    }
}

impl HttpResponse {
    /// Whether the body is a stream of events.
    pub fn is_stream(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("text/event-stream")
    }

    /// The next piece of a stream; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| self.client.broken(error))?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Reads the whole body, and returns the connection to the pool. Fails if the body is larger
    /// than [`MAX_MESSAGE`] or the connection fails.
    pub async fn whole(self) -> Result<Bytes, HttpError> {
        let Self {
            body,
            sender,
            client,
            ..
        } = self;
        let read = Limited::new(body, MAX_MESSAGE).collect().await;
        let read = read.map_err(|error| match error.is::<LengthLimitError>() {
            true => HttpError::TooLong,
            false => client.broken(error),
        })?;
        let mut idle = client.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push((sender, Instant::now()));
        }
        Ok(read.to_bytes())
    }
}
