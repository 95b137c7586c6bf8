//! A small MCP server over HTTP with responses that a test scripts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub http: String,
    /// The path and query.
    pub path: String,
    pub headers: http::HeaderMap,
    /// The body; null if it is not JSON.
    pub message: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The JSON-RPC method, or the HTTP method if the message has none.
    pub fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or(&self.http)
    }
}

/// A step in sending the body of a response.
#[derive(Clone, Debug)]
pub enum Part {
    Send(Vec<u8>),
    Wait(Duration),
    /// Sends nothing more and keeps the connection open.
    Hold,
    Break,
    /// Sends the same bytes again and again.
    Forever(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Scripted {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<Part>,
}

impl Scripted {
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub fn typed(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut answer = Self::status(200).with("content-type", content_type);
        answer.body.push(Part::Send(body.into()));
        answer
    }

    pub fn json(value: &Value) -> Self {
        Self::typed("application/json", value.to_string())
    }

    /// A JSON-RPC result for a request.
    pub fn result(request: &Value, result: Value) -> Self {
        Self::json(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
    }

    pub fn error(status: u16, request: &Value, code: i64, data: Value) -> Self {
        let error = json!({"code": code, "message": "no", "data": data});
        let mut answer =
            Self::json(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
        answer.status = status;
        answer
    }

    pub fn events(steps: Vec<Part>) -> Self {
        let mut answer = Self::status(200).with("content-type", "text/event-stream");
        answer.body = steps;
        answer
    }

    pub fn and(mut self, step: Part) -> Self {
        self.body.push(step);
        self
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Sends a server-sent event with a message.
pub fn event(message: &Value) -> Part {
    Part::Send(format!("event: message\ndata: {message}\n\n").into_bytes())
}

/// Sends text as part of a stream.
pub fn text(text: &str) -> Part {
    Part::Send(text.as_bytes().to_vec())
}

type Script = dyn Fn(&Seen) -> Scripted + Send + Sync;

/// A server on loopback, stopped on drop.
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    open: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    pub async fn start(script: impl Fn(&Seen) -> Scripted + Send + Sync + 'static) -> Self {
        Self::with(None, None, script).await
    }

    /// Starts a server. With `tls`, its connections must negotiate HTTP/2. With `patience`, the
    /// server closes a connection instead of answering if it was idle for longer.
    pub async fn with(
        tls: Option<TlsAcceptor>,
        patience: Option<Duration>,
        script: impl Fn(&Seen) -> Scripted + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared {
            script: Arc::new(script),
            patience,
            seen: Arc::default(),
            open: Arc::default(),
            connections: Arc::default(),
        };
        let Shared {
            seen,
            open,
            connections,
            ..
        } = shared.clone();
        let serving = serve(listener, tls, shared);
        Self {
            address,
            seen,
            open,
            connections,
            _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    /// Starts a legacy server with session `s1` and without a stream for GET. The script responds
    /// to all requests for which [`handshake`] returns `None`.
    pub async fn legacy(script: impl Fn(&Seen) -> Scripted + Send + Sync + 'static) -> Self {
        Self::start(move |seen| handshake(seen, "s1").unwrap_or_else(|| script(seen))).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// The requests with a method, oldest first.
    pub fn of(&self, method: &str) -> Vec<Seen> {
        let seen = self.seen();
        seen.into_iter()
            .filter(|one| one.method() == method)
            .collect()
    }

    /// Number of responses whose body has not ended and has not been dropped.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits up to 5 s for a request with a method, and returns the latest of these requests.
    pub async fn until(&self, method: &str) -> Seen {
        for _ in 0..500 {
            if let Some(seen) = self.of(method).pop() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {method} arrived: {:?}", self.seen());
    }
}

/// The response of a legacy server to `initialize`, GET, DELETE and notifications; `None` for other
/// requests.
pub fn handshake(seen: &Seen, session: &str) -> Option<Scripted> {
    Some(match seen.method() {
        "initialize" => {
            let version = &seen.message["params"]["protocolVersion"];
            let result = json!({
                "protocolVersion": version,
                "capabilities": {"tools": {}, "tasks": {}},
                "serverInfo": {"name": "test", "version": "1"},
                "instructions": "Be kind.",
            });
            Scripted::result(&seen.message, result).with("mcp-session-id", session)
        }
        "GET" => Scripted::status(405),
        "DELETE" => Scripted::status(200),
        method if method.starts_with("notifications/") => Scripted::status(202),
        _ => return None,
    })
}

#[derive(Clone)]
struct Shared {
    script: Arc<Script>,
    patience: Option<Duration>,
    seen: Arc<Mutex<Vec<Seen>>>,
    open: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        let latest = Arc::new(Mutex::new(Instant::now()));
        let service = service_fn(move |request: http::Request<Incoming>| {
            let (shared, latest) = (shared.clone(), Arc::clone(&latest));
            async move {
                let idle = latest.lock().elapsed();
                if shared.patience.is_some_and(|patience| idle > patience) {
                    return Err(std::io::Error::other("idle for too long"));
                }
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let seen = Seen {
                    http: parts.method.to_string(),
                    path: parts.uri.to_string(),
                    headers: parts.headers,
                    message: serde_json::from_slice(&body).unwrap_or(Value::Null),
                };
                let answer = (shared.script)(&seen);
                shared.seen.lock().push(seen);
                *latest.lock() = Instant::now();
                Ok(respond(answer, shared.open))
            }
        });
        let Some(tls) = tls.clone() else {
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            continue;
        };
        tokio::spawn(async move {
            // A client that does not trust the certificate closes the connection.
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let served = connection.serve_connection(TokioIo::new(stream), service);
            // The result is an error if the client closes the connection.
            let _ = served.await;
        });
    }
}

/// Counts a response as open until its body is dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type Item = Result<Frame<Bytes>, std::io::Error>;

fn respond(
    answer: Scripted,
    open: Arc<AtomicUsize>,
) -> http::Response<StreamBody<impl stream::Stream<Item = Item> + Send>> {
    open.fetch_add(1, Ordering::SeqCst);
    let state = (VecDeque::from(answer.body), Open(open));
    let body = stream::unfold(state, |(mut steps, open)| async move {
        loop {
            match steps.pop_front()? {
                Part::Send(bytes) => {
                    return Some((Ok(Frame::data(bytes.into())), (steps, open)));
                }
                Part::Wait(time) => tokio::time::sleep(time).await,
                Part::Hold => std::future::pending().await,
                Part::Break => {
                    let broken = std::io::Error::other("broken");
                    return Some((Err(broken), (steps, open)));
                }
                Part::Forever(bytes) => {
                    steps.push_front(Part::Forever(bytes.clone()));
                    return Some((Ok(Frame::data(bytes.into())), (steps, open)));
                }
            }
        }
    });
    let mut response = http::Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(StreamBody::new(body)).unwrap()
}
