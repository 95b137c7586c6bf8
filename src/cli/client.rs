//! An HTTP client of the admin API, over the admin socket.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::events::Events;
use super::exit::{Failure, code};
use super::unreachable;
use crate::admin::{SandboxSettings, not_registered};

/// The path of the registered containers.
pub(super) const CONTAINERS: &str = "/internal/containers";
/// The default time limit, from connecting to the end of the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit on the attempts of a request that the admin API's rate limit denies with 429.
const ATTEMPTS: u32 = 5;

/// A client of one server. Each request has its own connection.
pub(super) struct Client {
    socket: PathBuf,
    /// The option, variable or file that names the socket, for errors.
    named_by: String,
    timeout: Duration,
}

impl Client {
    pub(super) fn new(socket: PathBuf, named_by: impl Into<String>) -> Self {
        Self {
            socket,
            named_by: named_by.into(),
            timeout: RESPONSE_TIMEOUT,
        }
    }

    /// Sets the time limit, for requests that the server forwards to an MCP server.
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sends a request and returns the body of the response. Fails unless the status is 2xx. After
    /// status 429, tries again, up to [`ATTEMPTS`] attempts in all.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let request = request(method, path, body)?;
        let mut attempt = 1;
        loop {
            let response = self.exchange(request.clone()).await?;
            if response.status() == StatusCode::TOO_MANY_REQUESTS && attempt < ATTEMPTS {
                attempt += 1;
                tokio::time::sleep(wait_of(response.headers())).await;
                continue;
            }
            return match response.status().is_success() {
                true => Ok(response.into_body()),
                false => Err(self.refused(path, &response).await),
            };
        }
    }

    /// The failure of a request whose response has an error status. If the path names a container
    /// that is not registered, the failure lists the registered ones.
    async fn refused(&self, path: &str, response: &Response<Value>) -> Failure {
        let below = path
            .strip_prefix(CONTAINERS)
            .and_then(|path| path.strip_prefix('/'));
        if response.status() == StatusCode::NOT_FOUND
            && let Some(id) = below.and_then(|below| below.split('/').next())
            && let Ok(list) = self.get(CONTAINERS).await
            && let Some(containers) = list.body().get("containers").and_then(Value::as_array)
        {
            let ids = containers
                .iter()
                .filter_map(|container| container.get("container_id")?.as_str());
            let ids: Vec<&str> = ids.collect();
            return Failure::usage(not_registered(id, &ids));
        }
        failure(response)
    }

    /// Queries the settings that a sandbox needs: the server's addresses, certificates and
    /// credentials.
    pub(super) async fn settings(&self) -> Result<SandboxSettings, Failure> {
        let settings = self.call(Method::GET, "/internal/sandbox", None).await?;
        serde_json::from_value(settings).map_err(|error| {
            Failure::internal(format_args!(
                "the server's answer cannot be read: {error}: does the server have another version than this command?"
            ))
        })
    }

    /// Sends a GET once, and returns a response of any status.
    pub(super) async fn get(&self, path: &str) -> Result<Response<Value>, Failure> {
        self.exchange(request(Method::GET, path, None)?).await
    }

    /// Opens a stream of server-sent events. There is no timeout. Fails unless the status is 200.
    pub(super) async fn events(&self, path: &str) -> Result<Events, Failure> {
        let mut request = request(Method::GET, path, None)?;
        let accept = HeaderValue::from_static("text/event-stream");
        request.headers_mut().insert(ACCEPT, accept);
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => Ok(Events::new(response.into_body())),
            _ => Err(failure(&self.read(response).await?)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response<Value>, Failure> {
        let response = async { self.read(self.send(request).await?).await };
        let response = tokio::time::timeout(self.timeout, response).await;
        response.unwrap_or_else(|_| {
            Err(self.broken(format_args!("timed out after {} s", self.timeout.as_secs())))
        })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            let (socket, named_by) = (self.socket.display(), &self.named_by);
            let why = unreachable::explain(&self.socket, &error);
            let message = format!("cannot connect to {socket} ({named_by}): {error}: {why}");
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(error))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        response.map_err(|error| match unreachable::not_admitted(&self.socket) {
            Some(why) => self.broken(format_args!("{error}: {why}")),
            None => self.broken(error),
        })
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Response<Value>, Failure> {
        let (head, body) = response.into_parts();
        let body = body.collect().await;
        let body = body.map_err(|error| self.broken(error))?.to_bytes();
        let body = serde_json::from_slice(&body).map_err(|error| self.broken(error))?;
        Ok(Response::from_parts(head, body))
    }

    /// The failure of an open connection: the server closed it or sent no valid response in time.
    fn broken(&self, what: impl std::fmt::Display) -> Failure {
        let socket = self.socket.display();
        Failure::new(
            code::UNAVAILABLE,
            format_args!("no valid response from {socket}: {what}; see the server's log"),
        )
    }
}

fn request(
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let body = body.map(Value::to_string).unwrap_or_default();
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .map_err(Failure::internal)
}

/// Returns the time to wait before the next attempt: the time in `Retry-After`, but at most
/// [`RESPONSE_TIMEOUT`], or 1 s if the field is missing or invalid.
fn wait_of(headers: &HeaderMap) -> Duration {
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1)).min(RESPONSE_TIMEOUT)
}

/// The failure of a request whose response has an error status.
fn failure(response: &Response<Value>) -> Failure {
    let error = response.body().get("error").and_then(Value::as_str);
    let message = error.map_or_else(|| response.body().to_string(), str::to_owned);
    match response.status().is_client_error() {
        true => Failure::usage(message),
        false => Failure::internal(message),
    }
}
