//! Requests to one sidecar, over its Unix socket or over TCP.

use std::io;
use std::path::Path;
use std::sync::Arc;

use addons::contract::{Denial, Endpoint, Fault, Stage};
use addons::mcp::{CodingEndpoint, CodingSettings};
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue,
};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Full;

use super::super::MountError;
use super::unix::{Connections, UnixBody, UnixError};
use crate::http::{Answer, AnswerBody, BodyError, OwnClient};

/// Number of chunks of a body that are read before the task yields. A body that always has data
/// ready would otherwise use up tokio's cooperative budget in each poll. The timer of the call
/// needs this budget too, and would never fire.
const MAX_IN_A_ROW: u8 = 16;

/// Sends requests to one sidecar.
pub struct SidecarEndpoint {
    /// Sends requests over TCP through the chain, and accounts for memory.
    pub client: OwnClient,
    connector: Connector,
    /// The value of the `Authorization` field.
    token: Option<HeaderValue>,
}

enum Connector {
    Unix(Arc<Connections>),
    Tcp(Endpoint),
}

/// A response whose body is still to be read.
pub struct Response {
    pub status: StatusCode,
    /// In lower case, without parameters.
    pub media_type: String,
    pub body: Body,
}

/// The body of a response.
pub struct Body {
    source: Source,
    /// Chunks since the task last yielded.
    in_a_row: u8,
}

enum Source {
    Unix(UnixBody),
    Tcp(AnswerBody),
}

/// Why there is no complete response.
#[derive(Debug)]
pub enum Failure {
    /// Nothing of the request was sent.
    Unreachable(String),
    /// The connection ended or the response timed out; the request may have been carried out.
    BrokeOff(String),
    /// The response is malformed or too long.
    Wrong(String),
    /// A rule or a limit denied the request, or the proxy failed.
    Denied(Denial),
}

impl SidecarEndpoint {
    /// Creates an endpoint that sends requests as `client`. Fails if the token is not valid in a
    /// header field.
    pub fn new(settings: &CodingSettings, client: OwnClient) -> Result<Self, MountError> {
        let token = settings.token.as_ref().map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.0.as_str()));
            value.map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        let token = token.transpose().map_err(|_| {
            MountError::CannotStart(
                "auth.token contains characters that a header field cannot have".to_owned(),
            )
        })?;
        let connector = match &settings.endpoint {
            CodingEndpoint::Unix(path) => {
                Connector::Unix(Connections::new(path.clone(), client.clone()))
            }
            CodingEndpoint::Tcp(endpoint) => Connector::Tcp(endpoint.clone()),
        };
        Ok(Self {
            client,
            connector,
            token,
        })
    }

    /// Whether the settings have a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether an idle connection of an earlier request is open.
    pub fn has_idle(&self) -> bool {
        match &self.connector {
            Connector::Unix(connections) => connections.has_idle(),
            Connector::Tcp(endpoint) => self.client.has_idle(endpoint),
        }
    }

    /// Requests `/health`, without the token.
    pub async fn health(&self) -> Result<Response, Failure> {
        self.send(Method::GET, "/health", Bytes::new(), false).await
    }

    /// Requests an operation, with the token if there is one. Never repeats the request.
    pub async fn post(&self, path: &'static str, body: Bytes) -> Result<Response, Failure> {
        self.send(Method::POST, path, body, true).await
    }

    /// Requests an operation without the token.
    pub async fn post_anonymously(
        &self,
        path: &'static str,
        body: Bytes,
    ) -> Result<Response, Failure> {
        self.send(Method::POST, path, body, false).await
    }

    async fn send(
        &self,
        method: Method,
        path: &'static str,
        body: Bytes,
        with_token: bool,
    ) -> Result<Response, Failure> {
        let token = self.token.as_ref().filter(|_| with_token);
        let has_token = token.is_some();
        let request = request(method, path, body, token);
        let response = match &self.connector {
            Connector::Unix(connections) => {
                let response = connections.send(request.map(Full::new)).await;
                let (head, body) = response.map_err(Failure::of_unix)?.into_parts();
                Response::new(head.status, &head.headers, Source::Unix(body))
            }
            Connector::Tcp(endpoint) => {
                let answer = self.client.send(endpoint, request, has_token).await;
                let Answer {
                    status,
                    headers,
                    body,
                } = answer.map_err(Failure::of_denial)?;
                Response::new(status, &headers, Source::Tcp(body))
            }
        };
        response.map_err(Failure::Wrong)
    }
}

fn request(
    method: Method,
    path: &'static str,
    body: Bytes,
    token: Option<&HeaderValue>,
) -> Request<Bytes> {
    let is_empty = body.is_empty();
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_static(path);
    let fields = request.headers_mut();
    let accepted = HeaderValue::from_static("application/json, application/x-ndjson");
    fields.insert(ACCEPT, accepted);
    fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if !is_empty {
        let json = HeaderValue::from_static("application/json");
        fields.insert(CONTENT_TYPE, json);
    }
    if let Some(token) = token {
        fields.insert(AUTHORIZATION, token.clone());
    }
    request
}

impl Response {
    fn new(status: StatusCode, headers: &HeaderMap, source: Source) -> Result<Self, String> {
        if headers
            .get(CONTENT_ENCODING)
            .is_some_and(|coding| coding != "identity")
        {
            return Err(
                "the sidecar answered with a compressed body, which was not requested".to_owned(),
            );
        }
        let media_type = headers.get(CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next();
        Ok(Self {
            status,
            media_type: media_type.unwrap_or_default().trim().to_ascii_lowercase(),
            body: Body {
                source,
                in_a_row: 0,
            },
        })
    }
}

impl Body {
    /// The next bytes of the body; `None` at its end. Cancel safe.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row > MAX_IN_A_ROW {
            self.in_a_row = 0;
            tokio::task::yield_now().await;
        }
        match &mut self.source {
            Source::Unix(body) => body.chunk().await.map_err(Failure::broke_off),
            Source::Tcp(body) => body.chunk().await.map_err(|error| match error {
                BodyError::Denied(denial) => Failure::of_denial(denial),
                BodyError::Peer(error) => Failure::broke_off(error),
            }),
        }
    }
}

impl Failure {
    fn broke_off(error: impl std::fmt::Display) -> Self {
        Self::BrokeOff(error.to_string())
    }

    fn of_unix(error: UnixError) -> Self {
        match error {
            UnixError::Unreachable(error) => Self::Unreachable(reason(&error)),
            UnixError::BrokeOff(error) => Self::broke_off(error),
            UnixError::Denied(denial) => Self::Denied(denial),
        }
    }

    fn of_denial(denial: Denial) -> Self {
        match (denial.code().fault(), denial.stage()) {
            (Fault::Upstream, Some(Stage::Resolve | Stage::Connect | Stage::Tls)) => {
                Self::Unreachable(denial.sentence().to_owned())
            }
            (Fault::Upstream, _) => Self::BrokeOff(denial.sentence().to_owned()),
            _ => Self::Denied(denial),
        }
    }
}

/// The reason why a connection to a socket failed.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the socket does not exist".to_owned(),
        io::ErrorKind::ConnectionRefused => "nothing listens on the socket".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "the proxy may not open the socket: docs/coding-sidecar.md says which user must own it"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// The path of the socket, or host and port, for messages to operators.
pub fn name(endpoint: &CodingEndpoint) -> String {
    match endpoint {
        CodingEndpoint::Unix(path) => Path::display(path).to_string(),
        CodingEndpoint::Tcp(endpoint) => endpoint.authority(),
    }
}
