//! Evaluates the operator's policies, and enforces their decision.

use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;

use super::Mcp;
use super::denials::Target;
use super::input::EvaluatedMessage;
use super::people::Asking;
use super::ruling::{Ruling, is_replacement, record};
use super::settings::OnUnavailable;
use crate::contract::{
    Code, Container, Decision, Denial, Effect, Evaluation, EvaluatorError, Executing, Flow, Frame,
    FrameBody, Intercept, PolicyMetadata, RpcOutcome, Standing, Verdict,
};

/// A result without any text.
const EMPTY_RESULT: &str = r#"{"content":[]}"#;

impl Mcp {
    /// Evaluates every bundle that covers the message's method; records and enforces the decision.
    /// If the message passes, returns the replacement of its arguments, params, result or error;
    /// `None` if no policy redacts it. For the decision `ask` on a call, a person decides. An `ask`
    /// on the response to an approved call passes. Any other `ask` denies the message.
    pub(super) async fn enforce(
        &self,
        flow: &mut Flow,
        message: EvaluatedMessage<'_>,
        asking: Option<&Asking<'_>>,
    ) -> Result<Option<Box<RawValue>>, Denial> {
        if !self.ports.evaluator.covers(message.method) {
            return Ok(None);
        }
        let target = message.target;
        let ruling = self.evaluate(flow, &message).await?;
        let (effect, reason) = (ruling.effect, &ruling.reason);
        record(flow, effect, reason);
        flow.note(|| format!("the policies decide {}: {reason}", effect.as_str()));
        if let Some(metadata) = ruling.metadata.clone() {
            flow.put_slot(PolicyMetadata(metadata));
        }
        let is_approved = message.response.is_some() && flow.find_slot::<Executing>().is_some();
        let verdict = match (effect, asking) {
            (Effect::Allow | Effect::Redact, _) => Ok(()),
            (Effect::Ask, Some(asking)) => self.ask(flow, asking, &ruling).await,
            (Effect::Ask, None) if is_approved => Ok(()),
            (Effect::Ask, None) => Err(target.deny(&format!(
                "a person must approve it, and people are asked about calls of tools alone ({reason})"
            ))),
            (Effect::DenyContinue, _) => Err(target.deny(reason)),
            (Effect::DenyAbort, _) => {
                self.latch(flow, message.container).await;
                Err(target.abort(reason))
            }
        };
        verdict.map_err(|denial| {
            if !matches!(
                denial.code(),
                Code::PolicyDenied | Code::PolicyDeniedContinue
            ) {
                return denial;
            }
            let bundle = ruling.bundle.as_deref().unwrap_or("policies");
            let change = format!("change the policy {bundle}, under policies in mcp.yaml");
            let hint = match denial.edit() {
                Some(edit) => format!("{edit}, or {change}"),
                None => change,
            };
            denial.rule(bundle).hint(hint)
        })?;
        match ruling.modified {
            Some(modified) if !is_replacement(&modified) => {
                Err(target.evaluator_failed("`modified` is not an object"))
            }
            modified => Ok(modified),
        }
    }

    /// Evaluates the bundles and combines their decisions.
    async fn evaluate(
        &self,
        flow: &mut Flow,
        message: &EvaluatedMessage<'_>,
    ) -> Result<Ruling, Denial> {
        let policies = &self.settings.policies;
        let ends = Instant::now().checked_add(policies.timeout);
        let decisions = self.decide(flow, message, ends).await?;
        if decisions.is_empty() && policies.on_unavailable == OnUnavailable::Allow {
            return Ok(Ruling::undecided("policies.on_unavailable: allow"));
        }
        let is_empty = |one: &Decision| one.effect == Effect::Redact && one.modified.is_none();
        if decisions.iter().any(is_empty) {
            return Err(message.target.evaluator_failed("`modified` is missing"));
        }
        let intercept = flow.find_slot::<Intercept>();
        if !intercept.is_some_and(|one| one.is_unattributed) {
            return Ok(Ruling::of(decisions));
        }
        let decisions = self.without_call(flow, message, decisions, ends).await?;
        Ok(match decisions.is_empty() {
            true => Ruling::undecided("no policy decides without the tool"),
            false => Ruling::of(decisions),
        })
    }

    /// The decisions on a result whose call is not known, without those that depend on the call: a
    /// bundle that reads the tool or the agent, and refuses an empty result for the same reason and at
    /// least as strictly, refuses the missing tool. Redactions always count. `ends` is for both
    /// evaluations together.
    async fn without_call(
        &self,
        flow: &mut Flow,
        message: &EvaluatedMessage<'_>,
        mut decisions: Vec<Decision>,
        ends: Option<Instant>,
    ) -> Result<Vec<Decision>, Denial> {
        let refuses_call = |one: &Decision| one.depends_on_call && one.effect > Effect::Redact;
        if !decisions.iter().any(refuses_call) {
            return Ok(decisions);
        }
        let empty = RawValue::from_string(EMPTY_RESULT.to_owned()).map_err(Denial::malformed)?;
        let empty: RpcOutcome = Ok(empty);
        let neutral = EvaluatedMessage {
            response: Some((&empty, None)),
            ..*message
        };
        let neutral = self.decide(flow, &neutral, ends).await?;
        let is_for_call = |one: &Decision| {
            neutral.iter().any(|other| {
                let is_same = other.bundle == one.bundle && other.reason == one.reason;
                is_same && other.effect >= one.effect
            })
        };
        decisions.retain(|one| !(refuses_call(one) && is_for_call(one)));
        Ok(decisions)
    }

    /// Evaluates the bundles. Each bundle sees the redactions of the earlier ones.
    async fn decide(
        &self,
        flow: &mut Flow,
        message: &EvaluatedMessage<'_>,
        ends: Option<Instant>,
    ) -> Result<Vec<Decision>, Denial> {
        let policies = &self.settings.policies;
        let mut decisions: Vec<Decision> = Vec::new();
        loop {
            let last = decisions.last();
            let redacted = last.and_then(|decision| decision.modified.as_deref());
            let evaluation = Evaluation {
                container: message.container.id.clone(),
                input: message.input(flow, redacted)?,
                decided: decisions.len(),
                ends,
            };
            let evaluator = &self.ports.evaluator;
            let decided = evaluator.evaluate(message.method, evaluation).await;
            match (decided, policies.on_unavailable) {
                (Ok(decided), _) => {
                    decisions.extend(decided.all);
                    if !decided.more {
                        break;
                    }
                }
                (Err(EvaluatorError::Unavailable(_)), OnUnavailable::Allow) => break,
                (Err(error), _) => {
                    let reason = error.to_string();
                    flow.note(|| format!("the policy could not be evaluated: {reason}"));
                    return Err(message.target.evaluator_failed(&reason));
                }
            }
        }
        Ok(decisions)
    }

    /// Sets the container's abort latch in memory and on disk. Does nothing in a dry run. If the
    /// latch cannot be written to disk, logs an error. The latch then holds until a restart.
    async fn latch(&self, flow: &Flow, container: &Arc<Container>) {
        let stored = flow.effect(|| {
            // The latch is set before the write, so that no other call of the container passes
            // during the write.
            container.abort();
            let (records, container) = (Arc::clone(&self.ports.records), Arc::clone(container));
            let reached = Standing {
                aborted: true,
                ..Standing::default()
            };
            // The write runs in a task, so that a client cannot prevent it by disconnecting.
            self.ports
                .tasks
                .run(async move { records.reach(&container, reached).await })
        });
        if let Some(stored) = stored
            && !matches!(stored.await, Ok(Ok(())))
        {
            tracing::error!(container = %container.id, "cannot write the abort latch to disk: a restart of the proxy would clear it");
        }
    }
}

/// Denies the message if the container's abort latch is set.
pub(super) fn check_latch(flow: &mut Flow, container: &Container, target: &Target) -> Verdict {
    if !container.is_aborted() {
        return Ok(());
    }
    let reason = "a policy decided deny_abort on an earlier message";
    record(flow, Effect::DenyAbort, reason);
    let reset = format!("unified-proxy container reset {}", container.id);
    Err(target.abort(reason).rule("abort latch").hint(reset))
}

/// Replaces the result or error of a response by `modified`. If the response is an error, denies a
/// replacement that is not a JSON-RPC error.
pub(super) fn redact_outcome(
    frame: &mut Frame,
    modified: Box<RawValue>,
    target: &Target,
) -> Verdict {
    let FrameBody::Outcome(outcome) = &mut frame.body else {
        return Ok(());
    };
    let redacted: RpcOutcome = match outcome {
        Ok(_) => Ok(modified),
        Err(_) => Err(serde_json::from_str(modified.get())
            .map_err(|_| target.evaluator_failed("`modified` is not a JSON-RPC error"))?),
    };
    *outcome = redacted;
    Ok(())
}
