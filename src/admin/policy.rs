//! The MCP policy in force, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::approvals::decide;
use super::containers::take_write;
use super::error::{ApiError, ErrorBody};
use super::socket::Peer;
use crate::mcp::policy::{NotSet, PolicyChange};

/// The policy in force.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct PolicyBody {
    /// `stored`: a policy that people set; `bundle`: that of mcp.yaml.
    pub origin: String,
    /// The bundle that people may replace; null if `policies.editable` is unset.
    pub bundle: Option<String>,
    /// The name of the policy's file.
    pub file_name: String,
    /// SHA-256 of the text in hexadecimal; null without a text.
    pub digest: Option<String>,
    /// The text of that bundle, or of all bundles; null if it is too long or cannot be read.
    pub text: Option<String>,
    /// Why the policy is not in force, or has no text to show.
    pub problem: Option<String>,
    /// Who set a stored policy.
    pub set_by: Option<String>,
    /// When a stored policy was set (RFC 3339).
    pub set_at: Option<String>,
    /// The question about the proposal of a stored policy.
    pub proposal: Option<String>,
}

impl From<NotSet> for ApiError {
    fn from(error: NotSet) -> Self {
        let status = match error {
            NotSet::Refused(refused) => return refused.into(),
            NotSet::NotStored => StatusCode::NOT_FOUND,
            NotSet::File(_) => StatusCode::SERVICE_UNAVAILABLE,
            NotSet::Broken => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::Refused(status, error.to_string())
    }
}

fn body(api: &Api) -> PolicyBody {
    let snapshot = api.state.policies.current();
    let policy = &snapshot.policy;
    let stored = policy.stored.as_ref();
    let (text, no_text) = match &policy.text {
        Ok(text) => (Some(text.to_string()), None),
        Err(why) => (None, Some(why.clone())),
    };
    PolicyBody {
        origin: if policy.is_stored { "stored" } else { "bundle" }.to_owned(),
        bundle: policy.editable.as_deref().map(Into::into),
        file_name: snapshot.config.addons.mcp.policies.file_name().to_owned(),
        digest: text.is_some().then(|| policy.digest.clone()),
        text,
        problem: policy.problem.clone().or(no_text),
        set_by: stored.map(|stored| stored.set_by.clone()),
        set_at: stored.map(|stored| stored.set_at.clone()),
        proposal: stored.and_then(|stored| stored.proposal.clone()),
    }
}

/// Show the MCP policy in force, and who set it.
#[utoipa::path(
    get,
    path = "/internal/mcp/policy",
    operation_id = "show_policy",
    responses((status = 200, body = PolicyBody))
)]
pub(super) async fn show(State(api): State<Arc<Api>>) -> Json<PolicyBody> {
    Json(body(&api))
}

/// Remove the policy that people set, so that the bundle of mcp.yaml is in force again.
#[utoipa::path(
    delete,
    path = "/internal/mcp/policy",
    operation_id = "reset_policy",
    responses(
        (status = 200, body = PolicyBody, description = "The policy that is in force now"),
        (status = 404, body = ErrorBody, description = "No policy is stored"),
        (status = 422, body = ErrorBody, description = "The policy is removed, but the policies cannot be loaded: those before stay in force"),
        (status = 429, body = ErrorBody, description = "Over 10 writes a second; Retry-After"),
        (status = 503, body = ErrorBody, description = "The file cannot be written"),
    )
)]
pub(super) async fn reset(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<PolicyBody>, ApiError> {
    take_write(&api)?;
    let (control, by) = (Arc::clone(&api.state.control), peer.who());
    let done = move |change: &PolicyChange| {
        decide::policy_changed(&*control, &by, "operator/reset_policy", change);
    };
    api.state.policies.reset(done).await?;
    Ok(Json(body(&api)))
}
