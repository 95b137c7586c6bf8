//! Grants in the admin API: what approvals gave, and what operators give without a question.

use std::cmp::Reverse;
use std::sync::Arc;

use addons::contract::{
    ApprovalId, Container, GrantId, Host, LearnedHost, QuestionKind, is_public_name,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::act::OperatorAct;
use super::approvals::{Subject, object, requested_scope, rfc3339};
use super::containers::take_write;
use super::error::{ApiError, ErrorBody};
use super::socket::Peer;
use crate::approvals::bounds::DEFAULT_GRANT;
use crate::approvals::{Grant, Refused, Scope, Target};

/// The container of a grant for every container.
pub const EVERY: &str = "*";

/// A grant in force.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct GrantEntry {
    /// 32 hexadecimal digits. With scope `always`, the id of the approved question.
    pub id: String,
    /// The approved question; null if an operator gave the grant without one.
    pub approval: Option<String>,
    /// The kind of question that it answers.
    pub kind: String,
    /// `*`, like the lease, with scope `always`.
    pub container_id: String,
    pub lease: String,
    /// As in the question.
    pub subject: String,
    /// The highest security level of the container at which it answers.
    pub level: String,
    /// `once`, `for`, `lease` or `always`.
    pub scope: String,
    /// Who gave it: the name and id of a user.
    pub given_by: String,
    /// RFC 3339, as all times.
    pub created_at: String,
    /// When it ends; null if it has no time limit.
    pub expires_at: Option<String>,
}

/// The grants in force.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct GrantList {
    pub grants: Vec<GrantEntry>,
}

/// A grant without a question: a host and port for a container.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    /// The container's id.
    pub container: String,
    pub host: String,
    pub port: u16,
    /// `lease`: until the container's lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Instead of a scope, a time from `1s` to `24h`; by default `10m`.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

impl From<&Grant> for GrantEntry {
    fn from(grant: &Grant) -> Self {
        let target = &grant.target;
        Self {
            id: grant.id.to_string(),
            approval: grant.approval.map(|id| id.to_string()),
            kind: target.kind.as_str().to_owned(),
            container_id: target.container.to_string(),
            lease: target.lease.to_string(),
            subject: Subject(target.server.as_deref(), &target.subject).to_string(),
            level: target.level.as_str().to_owned(),
            scope: grant.scope.as_str().to_owned(),
            given_by: grant.by.clone(),
            created_at: rfc3339(grant.created_at),
            expires_at: grant.expires_at.map(rfc3339),
        }
    }
}

impl From<&LearnedHost> for GrantEntry {
    fn from(learned: &LearnedHost) -> Self {
        let id = learned.question.to_string();
        Self {
            id: id.clone(),
            approval: Some(id),
            kind: QuestionKind::Host.as_str().to_owned(),
            container_id: EVERY.to_owned(),
            lease: EVERY.to_owned(),
            subject: format!("{}:{}", learned.host, learned.port),
            level: learned.max_level.as_str().to_owned(),
            scope: Scope::Always.as_str().to_owned(),
            given_by: learned.author.to_string(),
            created_at: rfc3339(learned.time),
            expires_at: None,
        }
    }
}

/// List the grants in force, the newest first. Those with scope `always` are the entries of
/// `learned.yaml`.
#[utoipa::path(
    get,
    operation_id = "list_grants",
    path = "/internal/grants",
    responses(
        (status = 200, body = GrantList),
        (status = 503, body = ErrorBody, description = "The ledger cannot be read"),
    )
)]
pub(super) async fn list(State(api): State<Arc<Api>>) -> Result<Json<GrantList>, ApiError> {
    let grants = api.state.approvals.grants().await?;
    // The file has what is in force for everyone, the ledger only a record of it.
    let is_record =
        |grant: &&Grant| grant.scope == Scope::Always && grant.target.kind == QuestionKind::Host;
    let of_one = grants.iter().filter(|grant| !is_record(grant));
    let of_one = of_one.map(|grant| (grant.created_at, GrantEntry::from(grant)));
    let learned = api.state.learner.learned();
    let of_all = learned.iter().map(|one| (one.time, GrantEntry::from(one)));
    let mut grants: Vec<_> = of_one.chain(of_all).collect();
    grants.sort_by_key(|(at, _)| Reverse(*at));
    let grants = grants.into_iter().map(|(_, grant)| grant).collect();
    Ok(Json(GrantList { grants }))
}

/// Permit a host and port to a container, without a question. It holds up to the container's present
/// security level.
#[utoipa::path(
    post,
    operation_id = "add_grant",
    path = "/internal/grants",
    request_body = GrantBody,
    responses(
        (status = 201, body = GrantEntry),
        (status = 400, body = ErrorBody, description = "The body is not valid"),
        (status = 404, body = ErrorBody, description = "Container not found"),
        (status = 422, body = ErrorBody, description = "The host cannot be granted, or not for this time"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The ledger or the registry cannot be read"),
    )
)]
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<GrantEntry>), ApiError> {
    let body: GrantBody = object(&body?)?;
    if body.port == 0 {
        return Err(ApiError::Invalid(
            "port: must be from 1 to 65535".to_owned(),
        ));
    }
    let scope = requested_scope(body.scope.as_deref(), body.time.as_deref())?;
    let scope = scope.unwrap_or(Scope::For(DEFAULT_GRANT));
    let id = body.container.as_str();
    let container = super::containers::parse_id(Ok(Path(id.to_owned())))?;
    let container = api.state.registry.get(&container)?;
    let container = container.ok_or(ApiError::UnknownContainer)?;
    let host = grantable(&body.host, &container)?;
    take_write(&api)?;
    let target = Target {
        container: container.id.clone(),
        lease: container.lease,
        kind: QuestionKind::Host,
        server: None,
        subject: format!("{host}:{}", body.port).into(),
        level: container.level(),
    };
    let ledger = &api.state.approvals;
    let grant = ledger.add_grant(target, scope, peer.who()).await?;
    recorded(&api, peer, "operator/grant", &grant);
    Ok((StatusCode::CREATED, Json(GrantEntry::from(&grant))))
}

/// The host, if a person may permit it to the container.
fn grantable(host: &str, container: &Container) -> Result<Host, ApiError> {
    let refused = |why: String| ApiError::Refused(StatusCode::UNPROCESSABLE_ENTITY, why);
    let Some(host) = Host::parse(host).ok().filter(is_public_name) else {
        return Err(refused(format!(
            "{host:?} cannot be granted: only a public host name can be, such as api.example.com"
        )));
    };
    match container.allows(&host) {
        true => Ok(host),
        false => Err(refused(format!(
            "{host} cannot be granted: the allowed_domains of {} exclude it; register the container with others",
            container.id
        ))),
    }
}

/// Revoke a grant, or remove an entry of `learned.yaml`. Tunnels and WebSockets that rely on it end
/// within 5 seconds.
#[utoipa::path(
    delete,
    path = "/internal/grants/{id}",
    params(("id" = String, Path, description = "The grant's id")),
    responses(
        (status = 200, body = GrantEntry),
        (status = 404, body = ErrorBody, description = "There is no such grant"),
        (status = 410, body = ErrorBody, description = "The grant has ended already"),
        (status = 422, body = ErrorBody, description = "learned.yaml is damaged"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The ledger or learned.yaml cannot be read or written"),
    )
)]
pub(super) async fn revoke(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<GrantEntry>, ApiError> {
    let id = id
        .ok()
        .and_then(|Path(id)| Some((GrantId::parse(&id)?, ApprovalId::parse(&id)?)));
    let (id, question) = id.ok_or(Refused::Unknown)?;
    take_write(&api)?;
    let api_of_act = Arc::clone(&api);
    // Even if the client goes away during the reload.
    let done = move |learned: &LearnedHost| {
        recorded_for_all(&api_of_act, peer, &GrantEntry::from(learned));
    };
    if let Some(learned) = api.state.learner.revoke(question, done).await? {
        return Ok(Json(GrantEntry::from(&learned)));
    }
    let grant = api.state.approvals.revoke(id).await?;
    recorded(&api, peer, "operator/revoke", &grant);
    Ok(Json(GrantEntry::from(&grant)))
}

/// Records an act in the log and in the audit log.
fn recorded(api: &Api, peer: Peer, method: &'static str, grant: &Grant) {
    let target = &grant.target;
    let by = peer.who();
    let (id, container) = (grant.id, &target.container);
    tracing::info!(uid = peer.uid, by, grant = %id, %container, subject = ?target.subject, scope = ?grant.scope, "{method}");
    api.state.control.audit(OperatorAct {
        uid: peer.uid,
        method,
        // `None` if the registry cannot be read, or the lease has ended.
        container: api.state.registry.get(container).ok().flatten(),
        server: target.server.as_deref().map(Into::into),
        name: Some((*target.subject).into()),
        approval: grant.approval.map(|id| id.to_string()),
        by: Some(by),
        scope: Some(grant.scope),
        ..OperatorAct::default()
    });
}

/// Records the removal of an entry of `learned.yaml`.
fn recorded_for_all(api: &Api, peer: Peer, entry: &GrantEntry) {
    let by = peer.who();
    let subject = &entry.subject;
    tracing::info!(uid = peer.uid, by, grant = %entry.id, subject, "operator/revoke: learned.yaml");
    api.state.control.audit(OperatorAct {
        uid: peer.uid,
        method: "operator/revoke",
        name: Some(subject.as_str().into()),
        approval: entry.approval.clone(),
        by: Some(by),
        scope: Some(Scope::Always),
        ..OperatorAct::default()
    });
}
