//! The HTTP front end of the gateway: both eras of the protocol on one endpoint, `/mcp`; the older
//! transport HTTP+SSE on `/sse` and `/message`; the interceptor API below `/intercept`; and a health
//! check.

mod answer;
mod call;
mod capabilities;
mod header;
mod health;
mod hosts;
mod human;
mod intercept;
mod lease;
mod legacy;
mod limits;
mod media;
mod memory;
mod modern;
mod progress;
mod refusal;
mod sse;
mod token;
mod visit;

use std::sync::Arc;

use addons::contract::{Code, Denial};
use futures_util::future::BoxFuture;
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::core::Core;
use super::error::{PARSE_ERROR, protocol_error};
use super::fields::{PROTOCOL_VERSION, SESSION_ID};
use super::human::People;
use super::message::{Message, MessageError};
use super::version::{Era, Version};
use crate::http::{OriginRequest, Reply, Session};
use crate::registry::Registry;
use addons::json::strict::StrictJsonError;

pub use limits::GatewayMetrics;
pub use token::end_token_agent;

use answer::HttpResponse;
use header::only;
use limits::Count;
use media::{check_accept, check_body};
use refusal::{JSON, bad_request, refuse, refuse_with};
use token::{TokenLease, while_leased};
use visit::{Visit, own_subject};

/// The longest message that is parsed on the connection's thread, in bytes; longer ones are parsed
/// on a blocking thread.
const PARSED_IN_PLACE: usize = 64 * 1024;

/// The paths of the gateway, with their methods.
const PATHS: [(&str, &str); 4] = [
    ("/mcp", "GET, POST, DELETE"),
    ("/sse", "GET"),
    ("/message", "POST"),
    ("/health", "GET"),
];

/// A path of the gateway, with its methods. A slash at the end is ignored, since some servers and
/// their clients write one.
fn known(path: &str) -> Option<(&'static str, &'static str)> {
    let path = path.strip_suffix('/').unwrap_or(path);
    PATHS.into_iter().find(|(known, _)| *known == path)
}

/// Answers MCP clients.
pub struct Gateway {
    core: Arc<Core>,
    /// Answers people with tokens.
    people: Arc<People>,
    metrics: GatewayMetrics,
    /// Counts the suspended calls of all leases.
    suspended: Count,
    /// Has the lease of callers with a token.
    registry: Arc<Registry>,
    token_lease: TokenLease,
}

impl Gateway {
    /// Creates a gateway for the servers that `core` routes to, and for people.
    pub fn new(
        core: Arc<Core>,
        people: Arc<People>,
        metrics: GatewayMetrics,
        registry: Arc<Registry>,
    ) -> Self {
        Self {
            core,
            people,
            metrics,
            suspended: Count::default(),
            registry,
            token_lease: TokenLease::default(),
        }
    }

    /// Whether a path is one of the gateway's.
    pub fn has(path: &str) -> bool {
        known(path).is_some() || intercept::is_under(path)
    }

    pub fn handle(
        self: &Arc<Self>,
        session: Arc<Session>,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<Reply>> {
        let gateway = Arc::clone(self);
        let idle = Arc::clone(&session.idle);
        Box::pin(async move {
            let session = gateway.identify(session, request.headers()).await;
            let mut request = OriginRequest::begin(session, request);
            request.carries(own_subject(request.head.method.as_str()));
            if intercept::is_under(request.head.uri.path()) {
                let answered = Box::pin(intercept::answer(&gateway, request));
                return idle.held(answered).await;
            }
            // Meanwhile the connection's task checks whether the client is still connected.
            let session = Arc::clone(&request.session);
            // On the heap, since each of the futures around it would copy this large one.
            let routed = Box::pin(gateway.route(&mut request));
            let routed = idle.held(while_leased(&session, routed)).await;
            match routed {
                Ok(response) => response.into_reply(request),
                Err(denial) => denied(request, denial),
            }
        })
    }

    async fn route(&self, request: &mut OriginRequest) -> Result<HttpResponse, Denial> {
        request.check()?;
        let uri = &request.head.uri;
        if uri.authority().is_some() || request.head.method == Method::CONNECT {
            let sentence = "this listener serves MCP and is not a proxy";
            return Err(Denial::malformed(sentence));
        }
        let settings = &request.snapshot.config.addons.mcp;
        hosts::check(&request.head.headers, &settings.allowed_hosts)?;
        let path = request.head.uri.path();
        let path = known(path).map_or(path, |(path, _)| path).to_owned();
        let method = request.head.method.clone();
        if path != "/health"
            && let Some(token) = human::claimed(request)
        {
            return match &*path {
                "/mcp" => Box::pin(self.post_human(request, &token)).await,
                path => Err(not_allowed(&method, path)),
            };
        }
        match (&*path, &method) {
            ("/mcp", &Method::POST) => self.post_mcp(request).await,
            ("/mcp", &Method::GET | &Method::DELETE) => {
                let visit = Visit::begin(self, request).await?;
                if is_modern(only(visit.headers(), &PROTOCOL_VERSION)?) {
                    return Err(not_allowed(&method, &path));
                }
                match method {
                    Method::GET => legacy::get(&visit),
                    _ => legacy::delete(&visit),
                }
            }
            ("/sse", &Method::GET) => legacy::open_sse(&Visit::begin(self, request).await?),
            ("/message", &Method::POST) => {
                check_body(&request.head.headers)?;
                let visit = Visit::begin(self, request).await?;
                let (message, _) = read(visit.request).await?;
                legacy::message(&visit, message).await
            }
            ("/health", &Method::GET) => health::answer(self, request).await,
            (path, method) if known(path).is_some() => Err(not_allowed(method, path)),
            _ => {
                let sentence = "this listener serves /mcp, /sse, /message, /intercept and /health";
                Err(refuse(StatusCode::NOT_FOUND, None, sentence))
            }
        }
    }

    async fn post_mcp(&self, request: &mut OriginRequest) -> Result<HttpResponse, Denial> {
        let visit = Visit::begin(self, request).await?;
        check_body(visit.headers())?;
        check_accept(visit.headers(), JSON)?;
        let (message, is_long) = read(visit.request).await?;
        let is_listen = matches!(
            &message,
            Message::Request { method, .. } if &**method == "subscriptions/listen"
        );
        let response = match era(visit.headers(), &message) {
            Era::Modern => modern::post(&visit, message, is_long).await,
            Era::Legacy => legacy::post(&visit, message).await,
        };
        if is_listen {
            // The stream may last for days, and does not need the body.
            request.release_body();
        }
        response
    }
}

/// Reads a message, and records its method. Returns whether the message is too long to be read again
/// on the connection's thread.
async fn read(request: &mut OriginRequest) -> Result<(Message, bool), Denial> {
    let limits = &request.snapshot.config.proxy.limits;
    let (most, values) = (limits.inspect_body_bytes, limits.inspect_values);
    let body = request.body(most, "inspect_body_bytes").await?;
    let is_long = body.len() > PARSED_IN_PLACE;
    let parse = move || Message::parse(&body, values);
    let parsed = match is_long {
        true => request.inspect_on_worker(parse).await?,
        false => parse(),
    };
    let message = parsed.map_err(unreadable)?;
    let method = match &message {
        Message::Request { method, .. } | Message::Notification { method, .. } => method,
        Message::Response { .. } => "response",
    };
    request.carries(own_subject(method));
    Ok((message, is_long))
}

fn unreadable(error: MessageError) -> Denial {
    match error {
        MessageError::Json(StrictJsonError::TooMany(most)) => {
            let sentence = format!("Body too large: at most {most} JSON values");
            Denial::new(Code::BodyTooLargeToInspect, sentence)
                .with("limit", "inspect_values")
                .rule("inspect_values")
        }
        MessageError::Json(error) => {
            let error = protocol_error(PARSE_ERROR, format!("Parse error: {error}"));
            refuse_with(Code::MalformedRequest, StatusCode::BAD_REQUEST, None, error)
        }
        MessageError::NotRpc { ref id, .. } => {
            bad_request(id.as_ref(), format!("Invalid request: {error}"))
        }
        MessageError::Batch => bad_request(None, format!("Invalid request: {error}")),
    }
}

/// The era of a message: modern if its `_meta` names a revision, otherwise the era of the header.
/// The header is read first, since `_meta` needs parsing.
fn era(headers: &HeaderMap, message: &Message) -> Era {
    let params = match message {
        Message::Request { params, .. } | Message::Notification { params, .. } => params.as_deref(),
        Message::Response { .. } => None,
    };
    match era_of_header(headers) {
        Era::Legacy if modern::names_version(params) => Era::Modern,
        by_header => by_header,
    }
}

fn era_of_header(headers: &HeaderMap) -> Era {
    // The checks of each era refuse a repeated header.
    let version = headers.get(&PROTOCOL_VERSION);
    let version = version.and_then(|value| value.to_str().ok());
    match version.map(|version| Version::parse(version.trim())) {
        None => Era::Legacy,
        Some(Some(version)) => version.era(),
        // Only the legacy era has session ids.
        Some(None) if headers.contains_key(SESSION_ID) => Era::Legacy,
        Some(None) => Era::Modern,
    }
}

fn is_modern(version: Option<&str>) -> bool {
    let version = version.and_then(Version::parse);
    version.is_some_and(|version| version.era() == Era::Modern)
}

fn not_allowed(method: &Method, path: &str) -> Denial {
    let sentence = format!("Method not allowed: {method} {path}");
    Denial::new(Code::MethodNotAllowed, sentence)
}

fn denied(request: OriginRequest, denial: Denial) -> Response<Reply> {
    let allowed = known(request.head.uri.path()).map(|(_, methods)| methods);
    let is_wrong_method = denial.code() == Code::MethodNotAllowed;
    let mut response = request.deny(denial);
    if let Some(methods) = allowed.filter(|_| is_wrong_method) {
        let methods = HeaderValue::from_static(methods);
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}
