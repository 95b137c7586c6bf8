//! Questions about tool calls, which people decide.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Mcp;
use super::call::{READ_IN_PLACE, ToolCall, arguments, raw};
use super::denials::{DENIED, Target, cut};
use super::ruling::{Ruling, record};
use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, Approved, Code, Container, Denial,
    Effect, Executing, Flow, GrantId, Level, Question, QuestionKind, Topic, Unavailable, Verdict,
    names,
};
use crate::json::Members;

/// When an agent repeats a call that nobody decided about. Agents that repeat sooner poll.
const REPEAT_AFTER: &str = "5 minutes";

/// A call about which a person can be asked.
pub(super) struct Asking<'c> {
    pub(super) call: &'c ToolCall<'c>,
    /// The params as the caller wrote them.
    pub(super) params: &'c RawValue,
}

/// A question that waits for a person, in the slot of a flow that was denied for now.
pub struct OpenQuestion {
    approval: ApprovalId,
    digest: Box<str>,
    level: Level,
    asked: Asked,
    ledger: Arc<dyn ApprovalLedger>,
}

/// The grant that answers the question about a call, in a slot until the call has been judged.
struct Answer {
    grant: GrantId,
    digest: Box<str>,
    asked: Asked,
}

/// Writes the denials of a call about which a policy asks.
#[derive(Clone)]
struct Asked {
    target: Target,
    bundle: Arc<str>,
    /// The policy's reason.
    reason: Box<str>,
}

impl Mcp {
    /// Asks a person about a call. Passes if a grant answers. The grant is not used yet: see
    /// [`use_grant`](Self::use_grant). If a person must decide first, denies the call and puts an
    /// [`OpenQuestion`] into the flow. A dry run asks nothing and is denied.
    pub(super) async fn ask(
        &self,
        flow: &mut Flow,
        asking: &Asking<'_>,
        ruling: &Ruling,
    ) -> Verdict {
        let asked = Asked {
            target: asking.call.target.clone(),
            bundle: ruling.bundle.clone().unwrap_or_default(),
            reason: cut(&ruling.reason).into(),
        };
        if flow.effect(|| ()).is_none() {
            return Err(asked.would_ask());
        }
        let container = asking.call.container;
        let question = self.question(asking, &asked, ruling).await?;
        let (digest, level): (Box<str>, _) = (question.digest().into(), question.topic().level);
        let executing = flow.find_slot::<Executing>();
        if executing.is_some_and(|executing| executing.0.contains(&digest)) {
            return Ok(());
        }
        let grant = match flow.take_slot::<Approved>() {
            Some(approved) if approved.digest != digest || container.level() > approved.level => {
                return Err(asked.changed(approved.approval));
            }
            Some(approved) => approved.grant,
            None => match self.ports.ledger.ask(question).await.map_err(unavailable)? {
                ApprovalAnswer::Granted(grant) => {
                    flow.mcp_record().approval = Some(grant.to_string().into());
                    grant
                }
                ApprovalAnswer::Open(approval) => {
                    flow.mcp_record().approval = Some(approval.to_string().into());
                    let denial = asked.pending(approval);
                    flow.put_slot(OpenQuestion {
                        approval,
                        digest,
                        level,
                        asked,
                        ledger: Arc::clone(&self.ports.ledger),
                    });
                    return Err(denial);
                }
                ApprovalAnswer::Denied { approval, words } => {
                    return Err(asked.rejected(flow, approval, words.as_deref()));
                }
                ApprovalAnswer::Used => return Err(asked.used()),
                ApprovalAnswer::Full(limit) => return Err(asked.full(&limit.to_string())),
            },
        };
        flow.put_slot(Answer {
            grant,
            digest,
            asked,
        });
        Ok(())
    }

    /// Makes the question about a call; on a blocking thread for large arguments.
    async fn question(
        &self,
        asking: &Asking<'_>,
        asked: &Asked,
        ruling: &Ruling,
    ) -> Result<Question, Denial> {
        let call = asking.call;
        let rules = self.settings.rules_revision(
            &call.target.server,
            &call.definition.name,
            &call.container.id,
            &ruling.revision,
        );
        let topic = Topic {
            lease: call.container.lease,
            container: call.container.id.clone(),
            kind: QuestionKind::Tool,
            server: Some((&*call.target.server).into()),
            subject: (&*call.definition.name).into(),
            rule: Some((&*asked.bundle).into()),
            reason: Some(asked.reason.clone()),
            level: call.container.level(),
            revision: [&rules, ".", &call.definition.digest()].concat().into(),
        };
        let params = Members::read(asking.params).map_err(Denial::malformed)?;
        let arguments = raw(arguments(&params).to_owned())?;
        let is_long = arguments.get().len() > READ_IN_PLACE;
        let make = move || Question::new(topic, Some(&arguments)).map_err(Denial::malformed);
        if !is_long {
            return make();
        }
        let made = self.ports.tasks.run_blocking(make).await;
        made.unwrap_or_else(|_panicked| Err(Denial::panicked()))
    }

    /// Uses the grant that answers the question about a call, if one was asked. It is on disk then,
    /// so no other call can use a grant for one execution, also after a crash.
    pub(super) async fn use_grant(&self, flow: &mut Flow, container: &Container) -> Verdict {
        let Some(answer) = flow.take_slot::<Answer>() else {
            return Ok(());
        };
        let used = self.ports.ledger.use_grant(answer.grant, container.lease);
        if !used.await.map_err(unavailable)? {
            return Err(answer.asked.used());
        }
        flow.put_slot(Executing(vec![answer.digest]));
        Ok(())
    }
}

impl OpenQuestion {
    /// The question's id.
    pub fn approval(&self) -> ApprovalId {
        self.approval
    }

    /// How long a question waits for a decision.
    pub fn ttl(&self) -> Duration {
        self.ledger.ttl()
    }

    /// Waits for a person's decision, and adds the time to the flow's record. After an approval, the
    /// flow must be judged again: it then has [`Approved`]. `None`: there is no decision within
    /// `limit`, or the server stops. Cancel safe.
    pub async fn decision(&self, flow: &mut Flow, limit: Duration) -> Option<Verdict> {
        let begun = Instant::now();
        let outcome = self.ledger.wait(self.approval, limit).await;
        let waited = &mut flow.mcp_record().waited;
        *waited = Some(waited.unwrap_or_default().saturating_add(begun.elapsed()));
        Some(match outcome.map_err(unavailable).transpose()? {
            Ok(ApprovalOutcome::Granted(grant)) => {
                flow.put_slot(Approved {
                    approval: self.approval,
                    grant,
                    digest: self.digest.clone(),
                    level: self.level,
                });
                Ok(())
            }
            Ok(ApprovalOutcome::Denied(words)) => {
                Err(self.asked.rejected(flow, self.approval, words.as_deref()))
            }
            Ok(ApprovalOutcome::Used) => Err(self.asked.used()),
            Ok(ApprovalOutcome::Expired | ApprovalOutcome::Ended) => Err(self.expired()),
            Err(denial) => Err(denial),
        })
    }

    /// The denial of a call about which nobody decided in time.
    pub fn expired(&self) -> Denial {
        self.asked.expired(self.approval)
    }
}

impl Asked {
    /// A denial with this sentence, to which the policy's reason is added.
    fn deny(&self, outcome: Option<&str>, approval: Option<ApprovalId>, sentence: &str) -> Denial {
        let sentence = format!("{sentence} ({}: {})", self.bundle, self.reason);
        let mut denial = self.target.deny(&sentence).saying(sentence);
        if let Some(outcome) = outcome {
            denial = denial.with("outcome", outcome);
        }
        if let Some(approval) = approval {
            denial = denial.with("approval", approval.to_string());
        }
        let denial = denial.by(names::MCP).rule(&*self.bundle);
        denial.hint("unified-proxy approvals")
    }

    fn pending(&self, approval: ApprovalId) -> Denial {
        let sentence = format!(
            "waits for a person (approval {approval}): repeat the same call once, in {REPEAT_AFTER}; do not poll"
        );
        self.deny(Some("pending"), Some(approval), &sentence)
    }

    /// The denial by a person, whose words are written on one line.
    fn rejected(&self, flow: &mut Flow, approval: ApprovalId, words: Option<&str>) -> Denial {
        let words = words.unwrap_or_default().split_whitespace();
        let words = words.collect::<Vec<_>>().join(" ");
        let said = match words.is_empty() {
            true => "denied by a person".to_owned(),
            false => format!("denied by a person: {words}"),
        };
        flow.mcp_record().approval = Some(approval.to_string().into());
        record(flow, Effect::DenyContinue, &said);
        let sentence = format!("{said}; do not repeat the call");
        self.deny(Some("denied"), Some(approval), &sentence)
    }

    fn expired(&self, approval: ApprovalId) -> Denial {
        let sentence = "nobody decided in time: repeat the call to ask again";
        self.deny(Some("expired"), Some(approval), sentence)
    }

    fn changed(&self, approval: ApprovalId) -> Denial {
        let sentence = "approved, but the policies, the tool or the security level changed before: repeat the call to ask again";
        self.deny(Some("expired"), Some(approval), sentence)
    }

    fn used(&self) -> Denial {
        let sentence = "approved for one call, and an equal call got it: repeat the call only if it must run once more";
        self.deny(Some("used"), None, sentence)
    }

    fn full(&self, limit: &str) -> Denial {
        let sentence = format!("no person can be asked now: {limit}");
        self.deny(Some("full"), None, &sentence)
    }

    fn would_ask(&self) -> Denial {
        self.deny(None, None, "a person would be asked")
    }
}

/// Says that a call is denied although a person approved it.
pub(super) fn still_denied(denial: Denial, approval: ApprovalId) -> Denial {
    let is_policy = matches!(
        denial.code(),
        Code::PolicyDenied | Code::PolicyDeniedContinue
    );
    if !is_policy || denial.detail("outcome").is_some() {
        return denial;
    }
    let sentence = denial.sentence();
    let sentence = sentence.strip_prefix(DENIED).unwrap_or(sentence);
    let sentence = format!("approved, but denied: {sentence}");
    denial
        .saying(sentence)
        .with("approval", approval.to_string())
}

fn unavailable(_: Unavailable) -> Denial {
    Denial::new(Code::RegistryUnavailable, "Registry unavailable").rule("approvals")
}
