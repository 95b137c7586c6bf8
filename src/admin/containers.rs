//! Containers in the admin API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::ContainerId;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::Api;
use super::act::OperatorAct;
use super::error::{ApiError, ErrorBody};
use super::registration::parse_registration;
use super::schema::{ContainerEntry, RegistrationBody};
use super::socket::Peer;
use crate::registry::LeaseListener;

/// Limit on the time that a registration waits for its listener to open. Opening it usually takes
/// milliseconds.
const LISTENER_WAIT: Duration = Duration::from_secs(5);

/// The response to a registration, an unregistration or a reset.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct Done {
    /// `registered`, `unregistered` or `reset`.
    pub status: String,
    pub container_id: String,
    /// The path of the container's socket, if it was registered with `listener`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The containers whose leases ended because the new lease has their id or their address.
    /// Contains this container's id if its earlier lease ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<String>,
}

impl Done {
    fn new(status: &str, id: &ContainerId) -> Self {
        Self {
            status: status.to_owned(),
            container_id: id.to_string(),
            socket: None,
            replaced: Vec::new(),
        }
    }
}

/// Every registered container.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ContainerList {
    pub containers: Vec<ContainerEntry>,
}

/// Register a container, replacing a container with the same id or address. A body that changes
/// nothing but `expires_at` keeps the live lease and changes its expiry.
#[utoipa::path(
    post,
    path = "/internal/containers",
    request_body = RegistrationBody,
    responses(
        (status = 201, body = Done),
        (status = 400, body = ErrorBody, description = "Names the field that is wrong"),
        (status = 413, body = ErrorBody, description = "Over 1 MiB"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 500, body = ErrorBody, description = "The listener cannot be opened"),
        (status = 503, body = ErrorBody, description = "The registry cannot be read or written"),
    )
)]
pub(super) async fn register(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Done>), ApiError> {
    let new = parse_registration(&body?, OffsetDateTime::now_utc())?;
    take_write(&api)?;
    let registered = api.state.registry.register(new).await?;
    let container = &registered.container;
    tracing::info!(
        uid = peer.uid,
        container = %container.id,
        lease = %container.lease,
        extended = registered.extended,
        "container registered"
    );
    if !registered.extended {
        api.state.control.lease_began(container);
    }
    for replaced in &registered.replaced {
        tracing::info!(container = %container.id, %replaced, "the registration ended the lease of a container with the same id or address");
    }
    let socket = match &registered.listener {
        Some(listener) => Some(wait_for_socket(listener).await?),
        None => None,
    };
    let done = Done {
        socket,
        replaced: registered
            .replaced
            .iter()
            .map(ToString::to_string)
            .collect(),
        ..Done::new("registered", &container.id)
    };
    Ok((StatusCode::CREATED, Json(done)))
}

/// Waits until a listener is open, and returns the path of its socket. Fails with
/// [`ApiError::Broken`] if the listener cannot be opened or is not open after [`LISTENER_WAIT`].
async fn wait_for_socket(listener: &LeaseListener) -> Result<String, ApiError> {
    match tokio::time::timeout(LISTENER_WAIT, listener.opened.wait()).await {
        Ok(true) => Ok(listener.socket.display().to_string()),
        // The task that opens listeners logs why a listener cannot be opened.
        Ok(false) => Err(ApiError::Broken),
        Err(_) => {
            let socket = listener.socket.display();
            tracing::warn!(%socket, "the listener of a container was not open after {LISTENER_WAIT:?}");
            Err(ApiError::Broken)
        }
    }
}

/// List the registered containers.
#[utoipa::path(
    get,
    path = "/internal/containers",
    responses(
        (status = 200, body = ContainerList),
        (status = 503, body = ErrorBody, description = "The registry cannot be read"),
    )
)]
pub(super) async fn list(State(api): State<Arc<Api>>) -> Result<Json<ContainerList>, ApiError> {
    let live = api.state.registry.list()?;
    let containers = live.iter().map(|container| (&**container).into()).collect();
    Ok(Json(ContainerList { containers }))
}

/// Show one container.
#[utoipa::path(
    get,
    path = "/internal/containers/{id}",
    params(("id" = String, Path, description = "The container's id")),
    responses(
        (status = 200, body = ContainerEntry),
        (status = 404, body = ErrorBody, description = "Container not found"),
        (status = 503, body = ErrorBody, description = "The registry cannot be read"),
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ContainerEntry>, ApiError> {
    let found = api.state.registry.get(&parse_id(id)?)?;
    let container = found.ok_or(ApiError::UnknownContainer)?;
    Ok(Json((&*container).into()))
}

/// The query of an unregistration.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Unregistration {
    /// Whether the container's next lease has its security level and its abort latch, as after an
    /// expiry.
    #[serde(default)]
    keep_level: bool,
}

/// Unregister a container; its connections end. Also clears its security level and its abort latch,
/// which outlive an expired lease, unless `keep_level` is set.
#[utoipa::path(
    delete,
    path = "/internal/containers/{id}",
    params(("id" = String, Path, description = "The container's id"), Unregistration),
    responses(
        (status = 200, body = Done),
        (status = 400, body = ErrorBody, description = "The query is invalid"),
        (status = 404, body = ErrorBody, description = "Container not found"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The registry cannot be read or written"),
    )
)]
pub(super) async fn unregister(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<Unregistration>, QueryRejection>,
) -> Result<Json<Done>, ApiError> {
    let id = parse_id(id)?;
    let invalid = |error: QueryRejection| ApiError::Invalid(format!("Invalid query: {error}"));
    let Query(Unregistration { keep_level }) = query.map_err(invalid)?;
    take_write(&api)?;
    let was_known = match keep_level {
        true => api.state.registry.end_lease(id.clone()).await?,
        false => api.state.registry.unregister(id.clone()).await?,
    };
    if !was_known {
        return Err(ApiError::UnknownContainer);
    }
    tracing::info!(uid = peer.uid, container = %id, "container unregistered");
    Ok(Json(Done::new("unregistered", &id)))
}

/// Lower a container's security level to `Public` and clear its abort latch.
#[utoipa::path(
    post,
    path = "/internal/containers/{id}/reset",
    params(("id" = String, Path, description = "The container's id")),
    responses(
        (status = 200, body = Done),
        (status = 404, body = ErrorBody, description = "Container not found"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The registry cannot be read or written"),
    )
)]
pub(super) async fn reset(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Done>, ApiError> {
    let id = parse_id(id)?;
    take_write(&api)?;
    let reset = api.state.registry.reset(id.clone()).await?;
    let container = reset.ok_or(ApiError::UnknownContainer)?;
    tracing::warn!(uid = peer.uid, container = %id, "security level and abort latch reset by an operator");
    api.state.control.audit(OperatorAct {
        uid: peer.uid,
        method: "operator/reset",
        container: Some(container),
        ..OperatorAct::default()
    });
    Ok(Json(Done::new("reset", &id)))
}

/// Parses the container id in the path. Fails with [`ApiError::UnknownContainer`] if it is invalid.
pub(super) fn parse_id(id: Result<Path<String>, PathRejection>) -> Result<ContainerId, ApiError> {
    let id = id.ok().and_then(|Path(id)| ContainerId::parse(&id));
    id.ok_or(ApiError::UnknownContainer)
}

/// Counts a write against the limit that all clients share. Fails with [`ApiError::RateLimited`]
/// over the limit.
pub(super) fn take_write(api: &Api) -> Result<(), ApiError> {
    api.writes
        .take(Instant::now())
        .map_err(ApiError::RateLimited)
}
