//! The question about a tool whose definition has changed: the person who approves it accepts the
//! definition for everyone.

use serde_json::value::RawValue;

use super::Mcp;
use super::call::{READ_IN_PLACE, ToolCall, raw};
use super::definition::pinned_members;
use super::denials::{Target, accept_command};
use super::people::{Approved, AskDenials};
use super::ruling::record;
use crate::contract::{
    ApprovalAnswer, Definition, Denial, Effect, Flow, Question, QuestionKind, Topic,
};
use crate::json::{ObjectText, sha256_hex};

/// The setting that asks, as people and the audit see it.
const RULE: &str = "on_definition_change";

impl Mcp {
    /// The denial of a call of a tool whose definition changed. Asks a person to accept the
    /// definition, and does not wait. A dry run asks nothing; nor does a call that was approved
    /// before the definition changed, or about which no question can be made or kept.
    pub(super) async fn deny_changed(&self, flow: &mut Flow, call: &ToolCall<'_>) -> Denial {
        let denial = changed(flow, &call.target, &call.definition);
        if flow.is_dry_run() || flow.find_slot::<Approved>().is_some() {
            return denial;
        }
        let Ok(question) = self.about_definition(call).await else {
            return denial;
        };
        let denials = AskDenials {
            target: call.target.clone(),
            bundle: RULE.into(),
            reason: reason_of(&call.target, &call.definition).into(),
        };
        match self.ports.ledger.ask(question).await {
            Ok(ApprovalAnswer::Open(approval)) => {
                flow.approval_record().set(approval);
                denials.pending(approval)
            }
            Ok(ApprovalAnswer::Denied { approval, words }) => {
                denials.rejected(flow, approval, words.as_deref())
            }
            Ok(ApprovalAnswer::Full(limit)) => denials.full(&limit.to_string()),
            // An acceptance is no grant: it changes the definition that is accepted.
            Ok(ApprovalAnswer::Granted { .. } | ApprovalAnswer::Used) | Err(_) => denial,
        }
    }

    /// The question whether the definition of a tool is accepted. Its revision is the digest with
    /// which it is accepted, and its arguments are the accepted definition (`null` if it is not
    /// kept) and the new one.
    async fn about_definition(&self, call: &ToolCall<'_>) -> Result<Question, Denial> {
        let (server, tool) = (&call.target.server, &call.definition.name);
        let new = pinned_members(&call.definition.raw).map_err(Denial::malformed)?;
        let old = self.ports.accepted.accepted(server, tool).await;
        let old = old.ok().flatten();
        let topic = Topic {
            lease: call.container.lease,
            container: call.container.id.clone(),
            kind: QuestionKind::Definition,
            server: Some((&**server).into()),
            subject: (&**tool).into(),
            rule: Some(RULE.into()),
            reason: Some("the definition changed".into()),
            level: call.container.level(),
            revision: sha256_hex(&new).into(),
        };
        let mut arguments = ObjectText::default();
        arguments.member("new", &new);
        arguments.member("old", old.as_deref().unwrap_or(RawValue::NULL.get()));
        let arguments = raw(arguments.end())?;
        let is_long = arguments.get().len() > READ_IN_PLACE;
        let make = move || Question::new(topic, Some(&arguments)).map_err(Denial::malformed);
        self.made_question(make, is_long).await
    }
}

/// The denial of a call, or of a client's answer during a call, of a tool whose definition changed.
pub(super) fn changed(flow: &mut Flow, target: &Target, definition: &Definition) -> Denial {
    let reason = reason_of(target, definition);
    record(flow, Effect::DenyContinue, &reason);
    target.deny(&reason).rule(RULE)
}

fn reason_of(target: &Target, definition: &Definition) -> String {
    let tool = &definition.name;
    let command = accept_command(&target.server, tool);
    format!("the definition of {tool} changed; an operator accepts it with: {command}")
}
