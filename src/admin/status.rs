//! Health, metrics, flows, reload and explain.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use prometheus::{Encoder, TextEncoder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::broadcast::error::RecvError;
use utoipa::{OpenApi, ToSchema};

use super::error::{ApiError, ErrorBody};
use super::{Api, approvals, containers, grants, json, mcp, people, policy, sandbox};

/// The result of one health check.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: &'static str,
    pub ok: bool,
    /// Whether the server is `degraded` if this check fails.
    pub critical: bool,
}

/// The results of all health checks.
#[derive(Clone, Debug)]
pub struct Health(pub Vec<Check>);

impl Health {
    /// Whether all critical checks pass.
    pub fn is_healthy(&self) -> bool {
        self.0.iter().all(|check| check.ok || !check.critical)
    }
}

/// The status of a server whose critical checks all pass.
pub const HEALTHY: &str = "healthy";

#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct HealthBody {
    /// `healthy` or `degraded`.
    pub status: String,
    // Not a `BTreeMap`: the checks stay in their order.
    #[schema(value_type = std::collections::BTreeMap<String, bool>)]
    pub checks: Map<String, Value>,
}

/// A question about the verdict on a request or on a tool call.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The container's id.
    pub container: String,
    /// An HTTP method, or `tools/call` with `server`, `tool` and `arguments` instead of `url`.
    pub method: String,
    /// The request's URL: `wss://` or `ws://` for a WebSocket; `host:port` for CONNECT.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The server of a tool call, by its name in mcp.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The server's own name for the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The arguments of a tool call; an empty object by default.
    #[schema(value_type = Option<Object>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Map<String, Value>>,
}

/// The verdict on a request or a tool call, and the verdict of each addon.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Explanation {
    pub allowed: bool,
    /// Every addon in the order of the chain, then the part of the engine that denied the request,
    /// if one did.
    pub steps: Vec<ExplainStep>,
}

/// The verdict of one addon, or the denial by a part of the engine.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ExplainStep {
    /// The name of the addon, or of the part of the engine.
    pub addon: String,
    pub verdict: StepVerdict,
    /// The addon's reasons for its verdict.
    pub notes: Vec<String>,
    /// The denial's code. This and the following fields are absent unless the addon denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The denial's sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
    /// The name of the rule or entry that decided; absent if the denial has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The smallest edit of the configuration that would change the verdict; absent if the denial
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit: Option<String>,
}

/// An addon's verdict.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepVerdict {
    Passes,
    Denies,
    /// An earlier addon denied the request, so this one did not judge it.
    NotReached,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reloaded {
    /// `reloaded`
    status: &'static str,
}

/// The health checks. Only the checks of listeners, registry and chain are critical.
#[utoipa::path(
    get,
    path = "/internal/health",
    responses(
        (status = 200, body = HealthBody),
        (status = 503, body = HealthBody, description = "A critical check fails"),
    )
)]
pub(super) async fn health(State(api): State<Arc<Api>>) -> (StatusCode, Json<HealthBody>) {
    let health = api.state.control.health();
    let (code, status) = match health.is_healthy() {
        true => (StatusCode::OK, HEALTHY),
        false => (StatusCode::SERVICE_UNAVAILABLE, "degraded"),
    };
    let checks = health.0.into_iter();
    let body = HealthBody {
        status: status.to_owned(),
        checks: checks
            .map(|check| (check.name.to_owned(), check.ok.into()))
            .collect(),
    };
    (code, Json(body))
}

/// Metrics as Prometheus text.
#[utoipa::path(
    get,
    path = "/internal/metrics",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let encoder = TextEncoder::new();
    let text = encoder.encode_to_string(&api.state.metrics.gather());
    let text = text.map_err(|error| {
        tracing::error!(%error, "metrics could not be encoded");
        ApiError::Broken
    })?;
    let content_type = encoder.format_type().to_owned();
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// The flows that ended most recently, newest first; with `Accept: text/event-stream`, every flow
/// when it ends. If a client reads too slowly, an event `missed` has the number of missed flows. A
/// record of kind `lost` means that the audit log lacks `count` lines, dropped between `since` and
/// `until`.
#[utoipa::path(
    get,
    path = "/internal/flows",
    responses((status = 200, content(
        (Value = "application/json", example = json!({"flows": [{"kind": "http"}]})),
        (String = "text/event-stream"),
    )))
)]
pub(super) async fn flows(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    if super::wants_events(&headers) {
        return live_flows(&api);
    }
    let mut body = b"{\"flows\":".to_vec();
    body.extend_from_slice(&api.state.flows.newest());
    body.push(b'}');
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn live_flows(api: &Api) -> Response {
    let events = stream::unfold(api.state.flows.subscribe(), async |mut flows| {
        let event = match flows.recv().await {
            Ok(line) => Event::default().data(String::from_utf8_lossy(&line)),
            Err(RecvError::Lagged(missed)) => {
                Event::default().event("missed").data(missed.to_string())
            }
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), flows))
    });
    let until = api.shutdown.clone().cancelled_owned();
    Sse::new(events.take_until(until))
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// Reload the configuration, as a whole or not at all.
#[utoipa::path(
    post,
    path = "/internal/reload",
    responses(
        (status = 200, body = Reloaded),
        (status = 422, body = ErrorBody, description = "Every error of the configuration"),
    )
)]
pub(super) async fn reload(State(api): State<Arc<Api>>) -> Result<Json<Reloaded>, ApiError> {
    let done = api.state.control.reload();
    done.map_err(ApiError::BadConfiguration)?;
    Ok(Json(Reloaded { status: "reloaded" }))
}

/// Explain what would happen to a request or a tool call, without sending it.
#[utoipa::path(
    post,
    path = "/internal/explain",
    request_body = ExplainRequest,
    responses(
        (status = 200, body = Explanation),
        (status = 400, body = ErrorBody, description = "Says why the question cannot be answered"),
    )
)]
pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Explanation>, ApiError> {
    let question = json::parse(&body?).map_err(ApiError::Invalid)?;
    let explanation = api.state.control.explain(question).await;
    explanation.map(Json).map_err(ApiError::Invalid)
}

/// The OpenAPI document of this API.
#[utoipa::path(
    get,
    path = "/internal/openapi.json",
    responses((status = 200, body = serde_json::Value))
)]
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "unified-proxy admin API",
        description = "HTTP/1.1 over the admin socket."
    ),
    paths(
        containers::register,
        containers::list,
        containers::show,
        containers::unregister,
        containers::reset,
        mcp::request,
        mcp::definition,
        mcp::accept,
        people::request,
        policy::show,
        policy::reset,
        approvals::list,
        approvals::show,
        approvals::approve,
        approvals::deny,
        approvals::forget,
        grants::list,
        grants::add,
        grants::revoke,
        health,
        metrics,
        flows,
        sandbox::sandbox,
        reload,
        explain,
        openapi,
    )
)]
pub(super) struct Document;
