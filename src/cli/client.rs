//! The client of the admin API, over the admin socket: a method for each call, with the types of the
//! server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::net::UnixStream;

use super::events::Events;
use super::exit::{Failure, code};
use super::unreachable;
use crate::admin::{
    AcceptanceBody, Accepted, Approval, ApprovalList, ApproveBody, ContainerEntry, ContainerList,
    DefinitionBody, DenyBody, Done, ErrorBody, ExplainRequest, Explanation, GrantBody, GrantEntry,
    GrantList, HealthBody, NamedTool, PolicyBody, RegistrationBody, SandboxSettings,
    not_registered,
};

/// The path of the registered containers.
const CONTAINERS: &str = "/internal/containers";
/// The path of the questions.
const APPROVALS: &str = "/internal/approvals";
/// The path of the MCP policy that people set.
const POLICY: &str = "/internal/mcp/policy";
/// The path of the grants.
const GRANTS: &str = "/internal/grants";
/// The body of a request without one.
const EMPTY: String = String::new();
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

    /// The path of the server's admin socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sets the time limit, for requests that the server forwards to an MCP server.
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The MCP policy in force.
    pub(super) async fn policy(&self) -> Result<PolicyBody, Failure> {
        self.call(Method::GET, POLICY, EMPTY).await
    }

    /// Removes the policy that people set. Returns the one that is in force then.
    pub(super) async fn reset_policy(&self) -> Result<PolicyBody, Failure> {
        self.call(Method::DELETE, POLICY, EMPTY).await
    }

    /// Registers a container, or extends its lease.
    pub(super) async fn register(&self, body: &RegistrationBody) -> Result<Done, Failure> {
        self.call(Method::POST, CONTAINERS, json(body)?).await
    }

    pub(super) async fn containers(&self) -> Result<ContainerList, Failure> {
        self.call(Method::GET, CONTAINERS, EMPTY).await
    }

    pub(super) async fn container(&self, id: &str) -> Result<ContainerEntry, Failure> {
        self.call(Method::GET, &container(id, ""), EMPTY).await
    }

    /// Ends a container's lease; `keep_level` keeps its security level and abort latch.
    pub(super) async fn unregister(&self, id: &str, keep_level: bool) -> Result<Done, Failure> {
        let query = if keep_level { "?keep_level=true" } else { "" };
        self.call(Method::DELETE, &container(id, query), EMPTY)
            .await
    }

    pub(super) async fn reset(&self, id: &str) -> Result<Done, Failure> {
        self.call(Method::POST, &container(id, "/reset"), EMPTY)
            .await
    }

    /// Sends a JSON-RPC request on behalf of a container, and returns the JSON-RPC response.
    pub(super) async fn mcp(&self, id: &str, request: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, &container(id, "/mcp"), json(request)?)
            .await
    }

    pub(super) async fn definition(&self, tool: &NamedTool) -> Result<DefinitionBody, Failure> {
        self.call(Method::GET, &definition(tool), EMPTY).await
    }

    pub(super) async fn accept(
        &self,
        tool: &NamedTool,
        body: &AcceptanceBody,
    ) -> Result<Accepted, Failure> {
        let path = format!("{}/accept", definition(tool));
        self.call(Method::POST, &path, json(body)?).await
    }

    pub(super) async fn explain(&self, question: &ExplainRequest) -> Result<Explanation, Failure> {
        self.call(Method::POST, "/internal/explain", json(question)?)
            .await
    }

    /// The settings that a sandbox needs: the server's addresses, certificates and credentials.
    pub(super) async fn sandbox(&self) -> Result<SandboxSettings, Failure> {
        self.call(Method::GET, "/internal/sandbox", EMPTY).await
    }

    /// The health checks, also of a degraded server.
    pub(super) async fn health(&self) -> Result<HealthBody, Failure> {
        let request = request(Method::GET, "/internal/health", EMPTY)?;
        let response = self.exchange(request).await?;
        match response.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE => typed(response),
            _ => Err(failure(response)),
        }
    }

    /// A page of questions, the newest first; `before` is the last question of the page before.
    pub(super) async fn approvals(
        &self,
        state: Option<&str>,
        before: Option<&str>,
    ) -> Result<ApprovalList, Failure> {
        let mut path = format!("{APPROVALS}?limit=100");
        for (name, value) in [("state", state), ("before", before)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", segment(value)));
            }
        }
        self.call(Method::GET, &path, EMPTY).await
    }

    pub(super) async fn approval(&self, id: &str) -> Result<Approval, Failure> {
        self.call(Method::GET, &approval(id, ""), EMPTY).await
    }

    pub(super) async fn approve(&self, id: &str, body: &ApproveBody) -> Result<Approval, Failure> {
        let path = approval(id, "/approve");
        self.call(Method::POST, &path, json(body)?).await
    }

    pub(super) async fn deny(&self, id: &str, body: &DenyBody) -> Result<Approval, Failure> {
        let path = approval(id, "/deny");
        self.call(Method::POST, &path, json(body)?).await
    }

    pub(super) async fn forget(&self, id: &str) -> Result<Approval, Failure> {
        self.call(Method::POST, &approval(id, "/forget"), EMPTY)
            .await
    }

    pub(super) async fn grants(&self) -> Result<GrantList, Failure> {
        self.call(Method::GET, GRANTS, EMPTY).await
    }

    pub(super) async fn grant(&self, body: &GrantBody) -> Result<GrantEntry, Failure> {
        self.call(Method::POST, GRANTS, json(body)?).await
    }

    pub(super) async fn revoke(&self, id: &str) -> Result<GrantEntry, Failure> {
        let path = format!("{GRANTS}/{}", segment(id));
        self.call(Method::DELETE, &path, EMPTY).await
    }

    /// Opens the stream of questions as their state changes. There is no timeout.
    pub(super) async fn approval_events(&self) -> Result<Events, Failure> {
        self.events(APPROVALS).await
    }

    /// Opens the stream of flows as they end. There is no timeout.
    pub(super) async fn flows(&self) -> Result<Events, Failure> {
        self.events("/internal/flows").await
    }

    async fn events(&self, path: &str) -> Result<Events, Failure> {
        let mut request = request(Method::GET, path, EMPTY)?;
        let accept = HeaderValue::from_static("text/event-stream");
        request.headers_mut().insert(ACCEPT, accept);
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => Ok(Events::new(response.into_body())),
            _ => Err(failure(self.read(response).await?)),
        }
    }

    /// Sends a request and returns the body of the response. Fails unless the status is 2xx. After
    /// status 429, tries again, up to [`ATTEMPTS`] attempts in all.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<T, Failure> {
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
                true => typed(response),
                false => Err(self.refused(path, response).await),
            };
        }
    }

    /// The failure of a request whose response has an error status. If the path names a container
    /// that is not registered, the failure lists the registered ones.
    async fn refused(&self, path: &str, response: Response<Box<RawValue>>) -> Failure {
        if response.status() == StatusCode::NOT_FOUND
            && let Some(below) = path.strip_prefix(CONTAINERS)
            && let Some(id) = below.split(['/', '?']).nth(1)
            && let Ok(list) = request(Method::GET, CONTAINERS, EMPTY)
            && let Ok(list) = self.exchange(list).await
            && let Ok(ContainerList { containers }) = typed(list)
        {
            let ids = containers.iter();
            let ids = ids.map(|container| &container.registration.container_id);
            return Failure::usage(not_registered(id, &ids.collect::<Vec<_>>()));
        }
        failure(response)
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Box<RawValue>>, Failure> {
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

    /// Reads a response. Its JSON stays text, so that no digit of a number is lost.
    async fn read(&self, response: Response<Incoming>) -> Result<Response<Box<RawValue>>, Failure> {
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

fn json(body: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(body).map_err(Failure::internal)
}

fn request(method: Method, path: &str, body: String) -> Result<Request<Full<Bytes>>, Failure> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .map_err(Failure::internal)
}

/// A path below a container.
fn container(id: &str, below: &str) -> String {
    format!("{CONTAINERS}/{id}{below}")
}

/// A path below a question.
fn approval(id: &str, below: &str) -> String {
    format!("{APPROVALS}/{}{below}", segment(id))
}

/// The path of a tool's definition.
fn definition(NamedTool { server, tool }: &NamedTool) -> String {
    let [server, tool] = [server, tool].map(|name| segment(name));
    format!("/internal/mcp/definitions/{server}/{tool}")
}

/// Percent-encodes a text as one segment of a path.
fn segment(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let bytes = text.bytes();
    let encoded = bytes.map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
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

/// Reads the body of a response.
fn typed<T: DeserializeOwned>(response: Response<Box<RawValue>>) -> Result<T, Failure> {
    serde_json::from_str(response.body().get()).map_err(|error| {
        Failure::internal(format_args!(
            "the server's answer cannot be read: {error}: does the server have another version than this command?"
        ))
    })
}

/// The failure of a request whose response has an error status.
fn failure(response: Response<Box<RawValue>>) -> Failure {
    let (head, body) = response.into_parts();
    let message = match serde_json::from_str(body.get()) {
        Ok(ErrorBody { error, .. }) => error,
        Err(_) => body.get().to_owned(),
    };
    match head.status.is_client_error() {
        true => Failure::usage(message),
        false => Failure::internal(message),
    }
}

#[cfg(test)]
mod tests;
