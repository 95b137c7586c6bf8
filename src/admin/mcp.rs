//! MCP requests that an operator sends on behalf of a container, and the acceptance of changed tool
//! definitions.

use std::sync::Arc;

use addons::contract::Container;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::act::OperatorAct;
use super::approvals::decide::approve_equal;
use super::containers::{parse_id, take_write};
use super::error::{ApiError, ErrorBody};
use super::json;
use super::named_tool::NamedTool;
use super::socket::Peer;
use super::{Api, ControlPlane};
use crate::approvals::Decision;
use crate::mcp::{AcceptError, Id, Message, write_response};

/// Limit on the number of JSON values in a request. A request with more is refused with 400.
const MAX_VALUES: usize = 100_000;

/// One MCP request on behalf of a container.
#[derive(Debug)]
pub struct OperatorRequest {
    pub container: Arc<Container>,
    pub method: Arc<str>,
    pub params: Option<Box<RawValue>>,
}

/// The body of an acceptance.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptanceBody {
    /// The SHA-256 of the definition that is accepted, in hexadecimal.
    pub digest: Option<String>,
}

/// The digests of a tool's definition: SHA-256 in hexadecimal.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct DefinitionBody {
    pub server: String,
    pub tool: String,
    /// The digest of the accepted definition.
    pub accepted: String,
    /// The digest of the changed definition that waits to be accepted; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

/// The response to an acceptance.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct Accepted {
    /// `accepted`
    pub status: String,
    pub server: String,
    pub tool: String,
    /// The SHA-256 of the accepted definition, in hexadecimal.
    pub digest: String,
}

impl From<AcceptError> for ApiError {
    fn from(error: AcceptError) -> Self {
        let status = match &error {
            AcceptError::Unknown { .. } => StatusCode::NOT_FOUND,
            AcceptError::Unchanged { .. } | AcceptError::Superseded { .. } => StatusCode::CONFLICT,
            AcceptError::Unwritten(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::Refused(status, error.to_string())
    }
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
    let (id, method, params) = read_request(&body?)?;
    tracing::info!(uid = peer.uid, container = %container.id, %method, "MCP request by an operator");
    api.state.control.audit(OperatorAct {
        uid: peer.uid,
        method: "operator/mcp",
        container: Some(Arc::clone(&container)),
        name: Some(Arc::clone(&method)),
        ..OperatorAct::default()
    });
    let request = OperatorRequest {
        container,
        method,
        params,
    };
    let outcome = api.state.control.mcp(request).await;
    let text = write_response(Some(&id), &outcome);
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// The id, method and params of a request.
type RequestParts = (Id, Arc<str>, Option<Box<RawValue>>);

/// Reads a body with one request.
pub(super) fn read_request(body: &[u8]) -> Result<RequestParts, ApiError> {
    let message = Message::parse(body, MAX_VALUES);
    let message = message.map_err(|error| ApiError::Invalid(format!("Invalid body: {error}")))?;
    match message {
        Message::Request { id, method, params } => Ok((id, method, params)),
        Message::Notification { .. } | Message::Response { .. } => Err(ApiError::Invalid(
            "Invalid body: not a JSON-RPC request".to_owned(),
        )),
    }
}

/// Show the digests of a tool's definition.
#[utoipa::path(
    get,
    path = "/internal/mcp/definitions/{server}/{tool}",
    params(
        ("server" = String, Path, description = "The server's name in mcp.yaml"),
        ("tool" = String, Path, description = "The server's own name for the tool"),
    ),
    responses(
        (status = 200, body = DefinitionBody),
        (status = 404, body = ErrorBody, description = "The tool was never seen"),
        (status = 503, body = ErrorBody, description = "The definitions cannot be read"),
    )
)]
pub(super) async fn definition(
    State(api): State<Arc<Api>>,
    named: Result<Path<NamedTool>, PathRejection>,
) -> Result<Json<DefinitionBody>, ApiError> {
    let Path(named) = named.map_err(|_| ApiError::UnknownPath)?;
    let tool = named.clone();
    let digests = blocking(&api, move |control| control.definition(tool)).await?;
    Ok(Json(DefinitionBody {
        server: named.server,
        tool: named.tool,
        accepted: digests.accepted,
        changed: digests.changed,
    }))
}

/// Accept the changed definition of a tool, so that clients see the tool again. Without a digest,
/// accepts the definition that the server listed most recently. Approves the open questions about
/// this definition.
#[utoipa::path(
    post,
    path = "/internal/mcp/definitions/{server}/{tool}/accept",
    params(
        ("server" = String, Path, description = "The server's name in mcp.yaml"),
        ("tool" = String, Path, description = "The server's own name for the tool"),
    ),
    request_body = Option<AcceptanceBody>,
    responses(
        (status = 200, body = Accepted),
        (status = 400, body = ErrorBody, description = "The body is not valid"),
        (status = 404, body = ErrorBody, description = "The tool was never seen"),
        (status = 409, body = ErrorBody, description = "The definition has not changed, or has another digest than the body"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The definitions cannot be written"),
    )
)]
pub(super) async fn accept(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    named: Result<Path<NamedTool>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Accepted>, ApiError> {
    let Path(named) = named.map_err(|_| ApiError::UnknownPath)?;
    let body: AcceptanceBody = match &*body? {
        [] => AcceptanceBody::default(),
        body => json::parse(body).map_err(ApiError::Invalid)?,
    };
    take_write(&api)?;
    let tool = named.clone();
    let accepting = blocking(&api, |control| control.accept_definition(tool, body.digest));
    let digest = accepting.await?;
    let decision = Decision {
        by: peer.who(),
        comment: None,
    };
    approve_equal(&api, &decision, &named, &digest).await;
    let NamedTool { server, tool } = named;
    api.state.control.audit(OperatorAct {
        uid: peer.uid,
        method: "operator/accept",
        server: Some(server.as_str().into()),
        name: Some(tool.as_str().into()),
        ..OperatorAct::default()
    });
    tracing::warn!(uid = peer.uid, %server, %tool, %digest, "changed definition of a tool accepted by an operator");
    Ok(Json(Accepted {
        status: "accepted".to_owned(),
        server,
        tool,
        digest,
    }))
}

/// Calls the control plane on a thread that may block, since it reads or writes a file.
async fn blocking<T: Send + 'static>(
    api: &Api,
    call: impl FnOnce(&dyn ControlPlane) -> Result<T, AcceptError> + Send + 'static,
) -> Result<T, AcceptError> {
    let control = Arc::clone(&api.state.control);
    let done = tokio::task::spawn_blocking(move || call(&*control)).await;
    done.unwrap_or_else(|error| Err(AcceptError::Unwritten(error.to_string())))
}
