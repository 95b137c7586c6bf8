//! HTTP/1.1 to the sidecar over its Unix socket.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use addons::contract::Denial;
use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::http::OwnClient;
use crate::upstream::SocketPermit;

/// Time limit for connecting. The peer is on this machine.
const CONNECTING: Duration = Duration::from_secs(5);
/// The most idle connections that are kept; further ones are closed.
const MAX_IDLE: usize = 8;
/// How long an idle connection is kept. The sidecar closes it only after 30 s, so no request races
/// with that close.
const IDLE_LIFETIME: Duration = Duration::from_secs(5);
/// The longest response head, and the most bytes of a body that are read at once.
const MAX_HEAD: usize = 64 * 1024;

/// Connections to one socket.
pub struct Connections {
    path: PathBuf,
    /// Accounts for the sockets.
    client: OwnClient,
    /// The runtime that drives the connections. The runtime of a request may end before the
    /// connections.
    runtime: Handle,
    idle: Mutex<Vec<Connection>>,
    /// Whether a task that closes idle connections is running.
    has_pruner: AtomicBool,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Dropping it closes the connection.
    _driver: AbortOnDropHandle<()>,
    idle_since: Instant,
    _permit: SocketPermit,
}

/// Why there is no response.
pub enum UnixError {
    /// Nothing of the request was sent.
    Unreachable(io::Error),
    /// The request may have been carried out.
    BrokeOff(hyper::Error),
    /// The limit of connections is reached.
    Denied(Denial),
}

impl Connections {
    /// Creates a pool of connections to this socket, which live in the calling runtime. Opens none
    /// yet.
    pub fn new(path: PathBuf, client: OwnClient) -> Arc<Self> {
        Arc::new(Self {
            path,
            client,
            runtime: Handle::current(),
            idle: Mutex::default(),
            has_pruner: AtomicBool::new(false),
        })
    }

    /// Whether an idle connection is open.
    pub fn has_idle(&self) -> bool {
        let mut idle = self.idle.lock();
        idle.retain(Connection::is_fresh);
        !idle.is_empty()
    }

    /// Sends a request at most once. Dropping the future, or the body before its end, closes the
    /// connection.
    pub async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<UnixBody>, UnixError> {
        let host = HeaderValue::from_static("coding-sidecar");
        request.headers_mut().insert(HOST, host);
        while let Some(mut connection) = self.take_idle() {
            if connection.sender.ready().await.is_err() {
                continue;
            }
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok(self.response(response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(UnixError::BrokeOff(error.into_error())),
                },
            }
        }
        let permit = self.client.take_socket().map_err(UnixError::Denied)?;
        let connected = self.connect(permit).await;
        let mut connection = connected.map_err(UnixError::Unreachable)?;
        match connection.sender.try_send_request(request).await {
            Ok(response) => Ok(self.response(response, connection)),
            Err(mut error) => Err(match error.take_message() {
                Some(_unsent) => UnixError::Unreachable(io::ErrorKind::ConnectionAborted.into()),
                None => UnixError::BrokeOff(error.into_error()),
            }),
        }
    }

    fn response(
        self: &Arc<Self>,
        response: Response<Incoming>,
        connection: Connection,
    ) -> Response<UnixBody> {
        response.map(|incoming| UnixBody {
            incoming,
            connection: Some(connection),
            pool: Arc::clone(self),
        })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(Connection::is_fresh);
        idle.pop()
    }

    fn keep(self: &Arc<Self>, mut connection: Connection) {
        connection.idle_since = Instant::now();
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
        drop(idle);
        if !self.has_pruner.swap(true, Ordering::AcqRel) {
            self.runtime.spawn(prune(Arc::downgrade(self)));
        }
    }

    async fn connect(&self, permit: SocketPermit) -> io::Result<Connection> {
        let path = self.path.clone();
        let connecting = async move {
            let stream = UnixStream::connect(path).await?;
            let mut builder = Builder::new();
            builder.max_buf_size(MAX_HEAD);
            let (sender, connection) = builder
                .handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
            let driver = async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to a coding sidecar ended");
                }
            };
            Ok(Connection {
                sender,
                _driver: AbortOnDropHandle::new(tokio::spawn(driver)),
                idle_since: Instant::now(),
                _permit: permit,
            })
        };
        let connecting = self.runtime.spawn(timeout(CONNECTING, connecting));
        match AbortOnDropHandle::new(connecting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_elapsed)) => Err(io::ErrorKind::TimedOut.into()),
            Err(_ended) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl Connection {
    fn is_fresh(&self) -> bool {
        self.idle_since.elapsed() < IDLE_LIFETIME && !self.sender.is_closed()
    }
}

/// Closes connections that were idle for [`IDLE_LIFETIME`]; ends when no idle connection is left.
async fn prune(connections: Weak<Connections>) {
    loop {
        sleep(IDLE_LIFETIME).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let mut idle = connections.idle.lock();
        idle.retain(Connection::is_fresh);
        if idle.is_empty() {
            connections.has_pruner.store(false, Ordering::Release);
            return;
        }
    }
}

/// The body of a response. Reading it to its end returns the connection to the pool; dropping it
/// earlier closes the connection.
pub struct UnixBody {
    incoming: Incoming,
    connection: Option<Connection>,
    pool: Arc<Connections>,
}

impl UnixBody {
    /// The next bytes of the body; `None` at its end. Cancel safe.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            let Some(frame) = self.incoming.frame().await.transpose()? else {
                if let Some(connection) = self.connection.take() {
                    self.pool.keep(connection);
                }
                return Ok(None);
            };
            match frame.into_data() {
                Ok(chunk) if !chunk.is_empty() => return Ok(Some(chunk)),
                _empty_or_trailers => {}
            }
        }
    }
}
