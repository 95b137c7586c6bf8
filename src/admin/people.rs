//! MCP requests of people: over the admin socket, and the decisions of those who call the gateway
//! with a token.

use std::sync::Arc;

use addons::contract::{ApprovalId, BoxFuture, Container, ContainerId};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::act::OperatorAct;
use super::approvals::{Approval, decide};
use super::containers::take_write;
use super::error::{ApiError, ErrorBody};
use super::mcp::read_request;
use super::socket::Peer;
use super::{Api, not_registered};
use crate::approvals::{Decision, Filter, Record, State as QuestionState};
use crate::mcp::policy::PolicyChange;
use crate::mcp::{Act, Decisions, write_response};

/// Send one MCP request as a person: to the servers `policy_reader` and `policy_approver`, of those
/// that `policies.servers` mounts. A request whose `_meta` names a revision is of the modern era, others
/// are of the legacy era; there is no session.
#[utoipa::path(
    post,
    path = "/internal/mcp",
    request_body(
        content = serde_json::Value,
        description = "A request of JSON-RPC 2.0",
        example = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    ),
    responses(
        (status = 200, body = serde_json::Value, description = "The JSON-RPC response, also of a refused request"),
        (status = 400, body = ErrorBody, description = "The body is not a JSON-RPC request"),
        (status = 413, body = ErrorBody, description = "Over 1 MiB"),
    )
)]
pub(super) async fn request(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (id, method, params) = read_request(&body?)?;
    let outcome = api.state.people.request(peer.who().into(), method, params);
    let text = write_response(Some(&id), &outcome.await);
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// Decides for people as the handlers of this API do.
pub(super) struct PeopleDecisions(pub Arc<Api>);

impl PeopleDecisions {
    async fn decide(&self, by: &str, act: Act) -> Result<Value, ApiError> {
        let api = &self.0;
        let decision = || Decision {
            by: by.to_owned(),
            comment: None,
        };
        let record = match act {
            Act::Approve(id) => decide::approve(api, id, None, decision()).await?,
            Act::Deny(id) => decide::deny(api, id, decision()).await?,
            Act::SetPolicy(id) => {
                take_write(api)?;
                decide::set_proposed(api, id, decision()).await?
            }
            Act::SetPolicyText(source) => {
                take_write(api)?;
                let control = Arc::clone(&api.state.control);
                let done = move |change: &PolicyChange| decide::policy_set(&*control, change);
                let change = api.state.policies.set(source, by.into(), done).await?;
                return Ok(json!({ "bundle": change.bundle, "digest": change.digest }));
            }
        };
        self.shown(&record)
    }

    fn shown(&self, record: &Record) -> Result<Value, ApiError> {
        let approval = Approval::of(record, &self.0.state.learner);
        serde_json::to_value(approval).map_err(|_| ApiError::Broken)
    }
}

impl Decisions for PeopleDecisions {
    fn received(&self, by: &Arc<str>, method: &str, named: Option<&str>) {
        tracing::info!(%by, method, named, "MCP request by a person");
        self.0.state.control.audit(OperatorAct {
            method: "operator/mcp",
            name: Some(method.into()),
            by: Some(by.to_string()),
            reason: named.map(Arc::from),
            ..OperatorAct::default()
        });
    }

    fn refused(&self, by: &Arc<str>, act: &str, why: &str) {
        tracing::info!(%by, act, why, "an act of a person was refused");
        self.0.state.control.audit(OperatorAct {
            method: "operator/mcp",
            name: Some("tools/call".into()),
            by: Some(by.to_string()),
            reason: Some(format!("{act} was refused: {why}").into()),
            ..OperatorAct::default()
        });
    }

    fn act(&self, by: Arc<str>, act: Act) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move {
            let done = self.decide(&by, act).await;
            done.map_err(|error| error.to_string())
        })
    }

    fn pending(&self) -> BoxFuture<'_, Result<Vec<Value>, String>> {
        Box::pin(async {
            let filter = Filter {
                state: Some(QuestionState::Pending),
                ..Filter::default()
            };
            let records = self.0.state.approvals.list(filter).await;
            let records = records.map_err(|error| ApiError::from(error).to_string())?;
            let shown = records.iter().map(|record| self.shown(record));
            shown
                .collect::<Result<_, _>>()
                .map_err(|error| error.to_string())
        })
    }

    fn question(&self, id: ApprovalId) -> BoxFuture<'_, Result<Option<Value>, String>> {
        Box::pin(async move {
            let found = self.0.state.approvals.get(id).await;
            let found = found.map_err(|error| ApiError::from(error).to_string())?;
            let open = found.filter(|record| record.state == QuestionState::Pending);
            let shown = open.map(|record| self.shown(&record)).transpose();
            shown.map_err(|error| error.to_string())
        })
    }

    fn container(&self, id: &str) -> Result<Arc<Container>, String> {
        let registry = &self.0.state.registry;
        let unknown = || Err(not_registered(id, &[] as &[ContainerId]));
        let Some(parsed) = ContainerId::parse(id) else {
            return unknown();
        };
        match registry.get(&parsed).map_err(|error| error.to_string())? {
            Some(container) => Ok(container),
            None => unknown(),
        }
    }
}
