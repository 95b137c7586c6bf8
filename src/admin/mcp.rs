//! MCP requests that an operator sends on behalf of a container, and the acceptance of changed tool
//! definitions.

use std::sync::Arc;

use addons::contract::Container;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::containers::{parse_id, take_write};
use super::error::{ApiError, ErrorBody};
use super::socket::Peer;
use crate::mcp::{Message, write_response};

/// Limit on the JSON values in a request.
const MAX_VALUES: usize = 100_000;

/// One MCP request on behalf of a container.
#[derive(Debug)]
pub struct OperatorRequest {
    pub container: Arc<Container>,
    pub method: Arc<str>,
    pub params: Option<Box<RawValue>>,
}

/// The tool whose changed definition an operator accepts.
#[derive(Debug)]
pub struct Acceptance {
    pub server: String,
    pub tool: String,
}

/// The response to an acceptance.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// `accepted`
    status: &'static str,
    server: String,
    tool: String,
}

/// Send one MCP request on behalf of a container. It is judged and audited as a request of that
/// container, from a client of MCP revision 2026-07-28 without elicitation, sampling or roots.
#[utoipa::path(
    post,
    path = "/internal/containers/{id}/mcp",
    params(("id" = String, Path, description = "The container's id")),
    request_body(
        content = serde_json::Value,
        description = "A request of JSON-RPC 2.0, without `_meta`",
        example = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    ),
    responses(
        (status = 200, body = serde_json::Value, description = "The JSON-RPC response, also of a denied request"),
        (status = 400, body = ErrorBody, description = "The body is not a JSON-RPC request"),
        (status = 404, body = ErrorBody, description = "Container not found"),
        (status = 413, body = ErrorBody, description = "Over 1 MiB"),
        (status = 503, body = ErrorBody, description = "The registry cannot be read"),
    )
)]
pub(super) async fn request(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let found = api.state.registry.get(&parse_id(id)?)?;
    let container = found.ok_or(ApiError::UnknownContainer)?;
    let message = Message::parse(&body?, MAX_VALUES);
    let message = message.map_err(|error| ApiError::Invalid(format!("Invalid body: {error}")))?;
    let Message::Request { id, method, params } = message else {
        return Err(ApiError::Invalid(
            "Invalid body: not a JSON-RPC request".to_owned(),
        ));
    };
    tracing::info!(uid = peer.uid, container = %container.id, %method, "MCP request by an operator");
    let request = OperatorRequest {
        container,
        method,
        params,
    };
    let outcome = (api.state.mcp)(request).await;
    let text = write_response(Some(&id), &outcome);
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// Accept the changed definition of a tool, so that clients see the tool again.
#[utoipa::path(
    post,
    path = "/internal/mcp/definitions/{server}/{tool}/accept",
    params(
        ("server" = String, Path, description = "The server's name in mcp.yaml"),
        ("tool" = String, Path, description = "The server's own name for the tool"),
    ),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ErrorBody, description = "The tool was never seen"),
        (status = 409, body = ErrorBody, description = "The definition has not changed"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The definitions cannot be written"),
    )
)]
pub(super) async fn accept(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    named: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Accepted>, ApiError> {
    let Path((server, tool)) = named.map_err(|_| ApiError::UnknownPath)?;
    take_write(&api)?;
    let acceptance = Acceptance {
        server: server.clone(),
        tool: tool.clone(),
    };
    (api.state.accept_definition)(acceptance).await?;
    tracing::warn!(uid = peer.uid, %server, %tool, "changed definition of a tool accepted by an operator");
    Ok(Json(Accepted {
        status: "accepted",
        server,
        tool,
    }))
}
