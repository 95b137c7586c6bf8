//! Questions that people decide, in the admin API.

mod bodies;
pub(super) mod decide;
mod definitions;
mod stream;

use std::sync::Arc;

use addons::contract::{ApprovalId, ContainerId, QuestionKind};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::containers::take_write;
use super::error::{ApiError, ErrorBody};
use super::socket::Peer;
use super::{Api, json};
use crate::approvals::bounds::MAX_PAGE;
use crate::approvals::{
    Decision, Filter, NotLearned, Record, Refused, State as QuestionState, StoreError,
};

pub use bodies::{Approval, ApprovalList, ApproveBody, DenyBody};
pub(super) use bodies::{Subject, requested_scope, rfc3339};
pub use decide::policy_set;

/// Limit on the bytes of a person's words, so that the audit and denials quote them whole.
const MAX_COMMENT: usize = 512;

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Refused::from(error).into()
    }
}

impl From<NotLearned> for ApiError {
    fn from(error: NotLearned) -> Self {
        let status = match error {
            NotLearned::Refused(refused) => return refused.into(),
            NotLearned::File(_) => StatusCode::SERVICE_UNAVAILABLE,
            NotLearned::Broken => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::Refused(status, error.to_string())
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let status = match &refused {
            Refused::Unknown => StatusCode::NOT_FOUND,
            Refused::Decided(_) | Refused::NotDenied => StatusCode::CONFLICT,
            Refused::Over(_) | Refused::GrantOver => StatusCode::GONE,
            Refused::Scope(_) | Refused::NotInForce(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refused::Store(error) => {
                let text = format!("The ledger of approvals cannot be read or written: {error}");
                return Self::Refused(StatusCode::SERVICE_UNAVAILABLE, text);
            }
        };
        Self::Refused(status, refused.to_string())
    }
}

/// Which questions are listed.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// `pending`, `approved`, `used`, `denied`, `expired` or `ended`.
    state: Option<String>,
    /// `tool`, `request`, `host`, `definition` or `policy`.
    kind: Option<String>,
    /// The container's id.
    container: Option<String>,
    /// The number of questions: 1 to 100, by default 100.
    limit: Option<usize>,
    /// The id of the last question of the page before: only older questions are listed.
    before: Option<String>,
}

impl ListQuery {
    fn filter(&self) -> Result<Filter, ApiError> {
        if !(1..=MAX_PAGE).contains(&self.limit.unwrap_or(1)) {
            return Err(invalid(format_args!("limit must be from 1 to {MAX_PAGE}")));
        }
        Ok(Filter {
            state: parsed("state", self.state.as_deref(), QuestionState::parse)?,
            kind: parsed("kind", self.kind.as_deref(), QuestionKind::parse)?,
            container: parsed("container", self.container.as_deref(), ContainerId::parse)?,
            limit: self.limit,
            before: parsed("before", self.before.as_deref(), ApprovalId::parse)?,
        })
    }
}

fn parsed<T>(
    name: &str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let value =
        text.map(|text| parse(text).ok_or_else(|| invalid(format_args!("{name}: no such value"))));
    value.transpose()
}

fn invalid(what: impl std::fmt::Display) -> ApiError {
    ApiError::Invalid(what.to_string())
}

/// List questions, the newest first. With `Accept: text/event-stream`, every question when it is
/// asked and when its state changes, as an event with the question as it is then; `state` shows only
/// questions that then have this state. An event `missed` says that the client was too slow, or that
/// the ledger could not be read: list the questions again.
#[utoipa::path(
    get,
    operation_id = "list_approvals",
    path = "/internal/approvals",
    params(ListQuery),
    responses(
        (status = 200, content((ApprovalList = "application/json"), (String = "text/event-stream"))),
        (status = 400, body = ErrorBody, description = "Names the parameter that is wrong"),
        (status = 503, body = ErrorBody, description = "The ledger cannot be read"),
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: Result<Query<ListQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| invalid(error.body_text()))?;
    let filter = query.filter()?;
    if super::wants_events(&headers) {
        return Ok(stream::live(&api, filter));
    }
    let records = api.state.approvals.list(filter).await?;
    let approvals = records
        .iter()
        .map(|record| Approval::of(record, &api.state.learner))
        .collect();
    Ok(Json(ApprovalList { approvals }).into_response())
}

/// Show one question.
#[utoipa::path(
    get,
    operation_id = "show_approval",
    path = "/internal/approvals/{id}",
    params(("id" = String, Path, description = "The question's id")),
    responses(
        (status = 200, body = Approval),
        (status = 404, body = ErrorBody, description = "There is no such question"),
        (status = 503, body = ErrorBody, description = "The ledger cannot be read"),
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Approval>, ApiError> {
    let record = api.state.approvals.get(parse_id(id)?).await?;
    Ok(Json(Approval::of(
        &record.ok_or(Refused::Unknown)?,
        &api.state.learner,
    )))
}

/// Approve a question. Without a body, a tool call is approved for one execution, a request or a host
/// for 10 minutes. With scope `always`, a host is written to `learned.yaml` and put into force by a
/// reload; if that fails, the question is still pending. The definition of a tool is accepted for
/// everyone, and equal questions of other containers are approved with it. A proposed policy is in
/// force for everyone; if it cannot be loaded, the question is still pending.
#[utoipa::path(
    post,
    path = "/internal/approvals/{id}/approve",
    params(("id" = String, Path, description = "The question's id")),
    request_body = Option<ApproveBody>,
    responses(
        (status = 200, body = Approval),
        (status = 400, body = ErrorBody, description = "The body is not valid"),
        (status = 404, body = ErrorBody, description = "There is no such question"),
        (status = 409, body = ErrorBody, description = "Says who decided already"),
        (status = 410, body = ErrorBody, description = "The question expired, or its lease ended"),
        (status = 422, body = ErrorBody, description = "The kind of question does not have the scope, or what it approves cannot be put in force"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The ledger or learned.yaml cannot be read or written"),
    )
)]
pub(super) async fn approve(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Approval>, ApiError> {
    let id = parse_id(id)?;
    let body: ApproveBody = optional(&body?)?;
    let scope = requested_scope(body.scope.as_deref(), body.time.as_deref())?;
    let decision = decision(peer, body.comment)?;
    let record = decide::approve(&api, id, scope, decision).await?;
    Ok(Json(Approval::of(&record, &api.state.learner)))
}

/// Deny a question. For as long as it had to be decided, equal questions get the same answer, without
/// a new question. The agent gets the comment.
#[utoipa::path(
    post,
    path = "/internal/approvals/{id}/deny",
    params(("id" = String, Path, description = "The question's id")),
    request_body = Option<DenyBody>,
    responses(
        (status = 200, body = Approval),
        (status = 400, body = ErrorBody, description = "The body is not valid"),
        (status = 404, body = ErrorBody, description = "There is no such question"),
        (status = 409, body = ErrorBody, description = "Says who decided already"),
        (status = 410, body = ErrorBody, description = "The question expired, or its lease ended"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The ledger cannot be read or written"),
    )
)]
pub(super) async fn deny(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Approval>, ApiError> {
    let id = parse_id(id)?;
    let body: DenyBody = optional(&body?)?;
    let decision = decision(peer, body.comment)?;
    let record = decide::deny(&api, id, decision).await?;
    Ok(Json(Approval::of(&record, &api.state.learner)))
}

/// Let the questions that a denial answers be asked again.
#[utoipa::path(
    post,
    path = "/internal/approvals/{id}/forget",
    params(("id" = String, Path, description = "The question's id")),
    responses(
        (status = 200, body = Approval),
        (status = 404, body = ErrorBody, description = "There is no such question"),
        (status = 409, body = ErrorBody, description = "The question was not denied, or the denial is over"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The ledger cannot be read or written"),
    )
)]
pub(super) async fn forget(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Approval>, ApiError> {
    let id = parse_id(id)?;
    take_write(&api)?;
    let record = api.state.approvals.forget(id).await?;
    let undecided = Record {
        decision: None,
        ..record.clone()
    };
    decide::recorded_by(&api, &peer.who(), "operator/forget", &undecided, None);
    Ok(Json(Approval::of(&record, &api.state.learner)))
}

fn parse_id(id: Result<Path<String>, PathRejection>) -> Result<ApprovalId, ApiError> {
    let id = id.ok().and_then(|Path(id)| ApprovalId::parse(&id));
    Ok(id.ok_or(Refused::Unknown)?)
}

/// Parses a body that may be left out.
fn optional<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiError> {
    match body {
        [] => Ok(T::default()),
        body => object(body),
    }
}

/// Parses an object. Serde would take a list for one.
pub(super) fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let members: Map<String, Value> = json::parse(body).map_err(ApiError::Invalid)?;
    serde_json::from_value(members.into()).map_err(invalid)
}

fn decision(peer: Peer, comment: Option<String>) -> Result<Decision, ApiError> {
    if comment
        .as_ref()
        .is_some_and(|comment| comment.len() > MAX_COMMENT)
    {
        return Err(invalid(format_args!(
            "comment: at most {MAX_COMMENT} bytes"
        )));
    }
    Ok(Decision {
        by: peer.who(),
        comment: comment.map(Into::into),
    })
}
