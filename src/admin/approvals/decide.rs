//! Decisions about questions, of operators and of people who use MCP.

use std::sync::Arc;

use addons::contract::{ApprovalId, QuestionKind};

use super::definitions;
use crate::admin::act::OperatorAct;
use crate::admin::containers::take_write;
use crate::admin::error::ApiError;
use crate::admin::{Api, ControlPlane, NamedTool};
use crate::approvals::{Decision, Record, Refused, Scope, State};
use crate::mcp::policy::PolicyChange;

/// Approves a question, with the default scope of its kind if `scope` is `None`, and puts what it
/// approves in force. Records the act.
pub(in crate::admin) async fn approve(
    api: &Arc<Api>,
    id: ApprovalId,
    scope: Option<Scope>,
    decision: Decision,
) -> Result<Record, ApiError> {
    take_write(api)?;
    let question = api.state.approvals.get(id).await?;
    let question = question.ok_or(Refused::Unknown)?;
    let kind = question.topic.kind;
    let scope = scope.unwrap_or(Scope::default_of(kind));
    if kind == QuestionKind::Definition && scope == Scope::Always {
        let record = definitions::approve(api, id, &decision).await?;
        recorded(api, "operator/approve", &record, Some(scope));
        if let Some(tool) = definitions::named(&record) {
            approve_equal(api, &decision, &tool, &record.topic.revision).await;
        }
        return Ok(record);
    }
    if kind == QuestionKind::Policy && scope == Scope::Always {
        return set_proposed(api, id, decision).await;
    }
    let is_host = kind == QuestionKind::Host;
    if scope == Scope::Always && !is_host && question.state == State::Pending {
        return Err(Refused::Scope(kind).into());
    }
    let api_of_act = Arc::clone(api);
    let done = move |record: &Record| {
        recorded(&api_of_act, "operator/approve", record, Some(scope));
    };
    Ok(match scope {
        // Records the act itself, even if the client goes away during the reload.
        Scope::Always if is_host => api.state.learner.approve(id, decision, done).await?,
        _ => {
            let approved = api.state.approvals.approve(id, Some(scope), decision).await;
            approved.inspect(done)?
        }
    })
}

/// Approves a proposed policy, which is in force then. Fails if the question is not about a policy.
/// Records both acts.
pub(in crate::admin) async fn set_proposed(
    api: &Arc<Api>,
    id: ApprovalId,
    decision: Decision,
) -> Result<Record, ApiError> {
    let api_of_act = Arc::clone(api);
    let recorded = move |record: &Record| {
        recorded(&api_of_act, "operator/approve", record, Some(Scope::Always));
    };
    let control = Arc::clone(&api.state.control);
    let done = move |change: &PolicyChange| policy_set(&*control, change);
    let policies = &api.state.policies;
    Ok(policies.approve(id, decision, recorded, done).await?)
}

/// Approves and records all open questions about an accepted definition.
pub(in crate::admin) async fn approve_equal(
    api: &Api,
    decision: &Decision,
    tool: &NamedTool,
    digest: &str,
) {
    match definitions::approve_equal(api, tool, digest, decision).await {
        Ok(records) => {
            for record in records {
                recorded(api, "operator/approve", &record, Some(Scope::Always));
            }
        }
        Err(error) => {
            tracing::warn!(%error, "questions about an accepted definition may stay open");
        }
    }
}

/// Denies a question, and records the act.
pub(in crate::admin) async fn deny(
    api: &Arc<Api>,
    id: ApprovalId,
    decision: Decision,
) -> Result<Record, ApiError> {
    take_write(api)?;
    let record = api.state.approvals.deny(id, decision).await?;
    recorded(api, "operator/deny", &record, None);
    Ok(record)
}

/// Records a decision in the log and in the audit log.
fn recorded(api: &Api, method: &'static str, record: &Record, scope: Option<Scope>) {
    let by = record.decision.as_ref().map(|decision| &*decision.by);
    recorded_by(api, by.unwrap_or_default(), method, record, scope);
}

/// Records an act about a question in the log and in the audit log.
pub(super) fn recorded_by(
    api: &Api,
    by: &str,
    method: &'static str,
    record: &Record,
    scope: Option<Scope>,
) {
    let topic = &record.topic;
    let decision = record.decision.as_ref();
    let (approval, container) = (record.id, &topic.container);
    tracing::info!(by, %approval, %container, kind = topic.kind.as_str(), subject = ?topic.subject, ?scope, "{method}");
    let decided = record.closed_at.filter(|_| decision.is_some());
    let waited = decided.map(|at| (at - record.created_at).unsigned_abs());
    api.state.control.audit(OperatorAct {
        method,
        // `None` if the registry cannot be read, or the lease has ended.
        container: api.state.registry.get(container).ok().flatten(),
        server: topic.server.as_deref().map(Into::into),
        name: Some((*topic.subject).into()),
        approval: Some(approval.to_string()),
        by: Some(by.to_owned()),
        scope,
        reason: decision.and_then(|decision| decision.comment.clone()),
        waited,
        ..OperatorAct::default()
    });
}

/// Records who set a policy, and its text.
pub fn policy_set(control: &dyn ControlPlane, change: &PolicyChange) {
    policy_changed(control, &change.set_by, "operator/set_policy", change);
}

/// Records who changed the policy in force, and to which text.
pub(in crate::admin) fn policy_changed(
    control: &dyn ControlPlane,
    by: &str,
    method: &'static str,
    change: &PolicyChange,
) {
    let PolicyChange {
        bundle,
        digest,
        proposal,
        ..
    } = change;
    tracing::warn!(by, %bundle, digest, ?proposal, "{method}: another policy is stored");
    control.audit(OperatorAct {
        method,
        name: Some(Arc::clone(bundle)),
        approval: proposal.map(|id| id.to_string()),
        by: Some(by.to_owned()),
        reason: digest
            .as_ref()
            .map(|digest| format!("sha256 {digest}").into()),
        ..OperatorAct::default()
    });
}
