//! Questions about tool calls, which people decide.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::Mcp;
use super::call::{READ_IN_PLACE, ToolCall, shown};
use super::denials::{DENIED, Target, cut};
use super::ruling::{Ruling, record};
use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, Code, Container, Denial, Effect,
    Executing, Flow, GrantId, Level, Question, QuestionKind, Topic, Unavailable, Verdict, names,
};

/// When an agent should repeat a call about which no decision came. It is long, so that agents do not
/// poll.
const REPEAT_AFTER: &str = "5 minutes";

/// A call about which a person can be asked.
pub(super) struct Asking<'c> {
    pub(super) call: &'c ToolCall<'c>,
    /// The params as the caller wrote them.
    pub(super) params: &'c RawValue,
}

/// A question that waits for a person, in a slot of the flow of its call. The chain denied that flow;
/// after an approval, it judges it again.
pub struct OpenQuestion {
    approval: ApprovalId,
    digest: Box<str>,
    level: Level,
    denials: AskDenials,
    ledger: Arc<dyn ApprovalLedger>,
}

/// A person approved the question about the call, in a slot of its flow. The engine has the chain
/// judge the call again, and the grant answers the question if nothing else denies it.
pub(super) struct Approved {
    pub(super) approval: ApprovalId,
    digest: Box<str>,
    /// The container's security level when the question was asked, up to which the approval holds.
    level: Level,
    grant: Promise,
}

/// A grant that a caller has waited for. Gives it back when it is dropped, for the next caller,
/// unless it was used.
struct Promise {
    grant: GrantId,
    ledger: Arc<dyn ApprovalLedger>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.ledger.release(self.grant);
    }
}

/// The grant that answers the question about a call, in a slot until the call has been judged.
struct Answer {
    grant: GrantId,
    approval: Option<ApprovalId>,
    digest: Box<str>,
    level: Level,
    denials: AskDenials,
    /// Kept until the grant is used.
    promise: Option<Promise>,
}

/// Writes the denials of a call about which a policy or a setting asks.
#[derive(Clone)]
pub(super) struct AskDenials {
    pub(super) target: Target,
    /// The bundle or the setting.
    pub(super) bundle: Arc<str>,
    /// Its reason.
    pub(super) reason: Box<str>,
}

impl Mcp {
    /// Asks a person about a call. Passes if a grant answers. The grant is not used yet: see
    /// [`use_grant`](Self::use_grant). If a person must decide first, denies the call and puts an
    /// [`OpenQuestion`] into the flow. A dry run asks nothing: see [`foresee`](Self::foresee).
    pub(super) async fn ask(
        &self,
        flow: &mut Flow,
        asking: &Asking<'_>,
        ruling: &Ruling,
    ) -> Verdict {
        let denials = AskDenials {
            target: asking.call.target.clone(),
            bundle: ruling.bundle.clone().unwrap_or_default(),
            reason: cut(&ruling.reason).into(),
        };
        let executing = flow.find_slot::<Executing>();
        let continues = executing.is_some_and(|one| one.continues);
        let question = self.question(asking, &denials, ruling, continues).await?;
        if flow.is_dry_run() {
            return self.foresee(flow, &denials, question).await;
        }
        let (digest, level): (Box<str>, _) = (question.digest().into(), question.topic().level);
        let executing = flow.find_slot::<Executing>();
        if executing.is_some_and(|one| one.digest == digest && level <= one.level) {
            return Ok(());
        }
        if continues {
            // A suspended call does not wait for a second decision.
            return Err(denials.ended(None));
        }
        let (grant, approval, promise) = match flow.take_slot::<Approved>() {
            Some(approved) if approved.digest != digest || level > approved.level => {
                return Err(denials.changed(Some(approved.approval)));
            }
            Some(approved) => {
                let promise = approved.grant;
                (promise.grant, Some(approved.approval), Some(promise))
            }
            None => match self.ports.ledger.ask(question).await.map_err(unavailable)? {
                ApprovalAnswer::Granted { grant, approval } => {
                    match approval {
                        Some(approval) => flow.approval_record().set(approval),
                        None => flow.approval_record().set(grant),
                    }
                    (grant, approval, None)
                }
                ApprovalAnswer::Open(approval) => {
                    flow.approval_record().set(approval);
                    let denial = denials.pending(approval);
                    flow.put_slot(OpenQuestion {
                        approval,
                        digest,
                        level,
                        denials,
                        ledger: Arc::clone(&self.ports.ledger),
                    });
                    return Err(denial);
                }
                ApprovalAnswer::Denied { approval, words } => {
                    return Err(denials.rejected(flow, approval, words.as_deref()));
                }
                ApprovalAnswer::Used => return Err(denials.used(None)),
                ApprovalAnswer::Full(limit) => return Err(denials.full(&limit.to_string())),
            },
        };
        flow.put_slot(Answer {
            grant,
            approval,
            digest,
            level,
            denials,
            promise,
        });
        Ok(())
    }

    /// The verdict of a dry run: passes if a grant would answer, and names it. Uses and opens nothing.
    async fn foresee(&self, flow: &mut Flow, denials: &AskDenials, question: Question) -> Verdict {
        match self
            .ports
            .ledger
            .look_up(question)
            .await
            .map_err(unavailable)?
        {
            Some(ApprovalAnswer::Granted { grant, .. }) => {
                flow.note(|| format!("allowed by grant {grant} of a person"));
                Ok(())
            }
            Some(ApprovalAnswer::Denied { approval, words }) => {
                Err(denials.rejected(flow, approval, words.as_deref()))
            }
            Some(ApprovalAnswer::Open(approval)) => Err(denials.pending(approval)),
            Some(ApprovalAnswer::Used) => Err(denials.used(None)),
            Some(ApprovalAnswer::Full(limit)) => Err(denials.full(&limit.to_string())),
            None => Err(denials.would_ask()),
        }
    }

    /// Makes the question about a call; on a blocking thread for long params.
    async fn question(
        &self,
        asking: &Asking<'_>,
        denials: &AskDenials,
        ruling: &Ruling,
        continues: bool,
    ) -> Result<Question, Denial> {
        let call = asking.call;
        let rules = self.settings.rules_revision(
            &call.target.server,
            &call.definition.name,
            &call.container.id,
            &ruling.revision,
        );
        let mut topic = Topic {
            lease: call.container.lease,
            container: call.container.id.clone(),
            kind: QuestionKind::Tool,
            server: Some((&*call.target.server).into()),
            subject: (&*call.definition.name).into(),
            rule: Some((&*denials.bundle).into()),
            reason: Some(denials.reason.clone()),
            level: call.container.level(),
            revision: [&rules, ".", &call.definition.digest()].concat().into(),
        };
        let params = asking.params.to_owned();
        let redacted = ruling.modified.clone();
        let (definition, rule) = (Arc::clone(&call.definition), call.rule.clone());
        let is_long = params.get().len() > READ_IN_PLACE;
        let make = move || {
            let rule = rule.as_deref();
            let shown = shown(&params, redacted.as_deref(), &definition, rule, continues)?;
            if shown.has_more {
                // Arguments with the same members as this object are another question.
                topic.revision = [&*topic.revision, ".more"].concat().into();
            }
            Question::new(topic, Some(&shown.text)).map_err(Denial::malformed)
        };
        self.made_question(make, is_long).await
    }

    /// Makes a question; on a blocking thread if that takes long.
    pub(super) async fn made_question(
        &self,
        make: impl FnOnce() -> Result<Question, Denial> + Send + 'static,
        is_long: bool,
    ) -> Result<Question, Denial> {
        if !is_long {
            return make();
        }
        let made = self.ports.tasks.run_blocking(make).await;
        made.unwrap_or_else(|_panicked| Err(Denial::panicked()))
    }

    /// Uses the grant that answers the question about a call, if one was asked. It is on disk then,
    /// so no other call can use a grant for one execution, also after a crash. `classification` is
    /// the tool's, to which the call itself raises the container's level. Denies the call if the
    /// level has risen further since the question.
    pub(super) async fn use_grant(
        &self,
        flow: &mut Flow,
        container: &Container,
        classification: Level,
    ) -> Verdict {
        let Some(answer) = flow.take_slot::<Answer>() else {
            // The policies no longer ask: the approval is for the next caller.
            drop(flow.take_slot::<Approved>());
            return Ok(());
        };
        let used = self.ports.ledger.use_grant(answer.grant, container.lease);
        if !used.await.map_err(unavailable)? {
            return Err(answer.denials.ended(answer.approval));
        }
        drop(answer.promise);
        let level = answer.level.max(classification);
        if container.level() > level {
            return Err(answer.denials.changed(answer.approval));
        }
        flow.put_slot(Executing {
            digest: answer.digest,
            level,
            continues: false,
        });
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
    /// flow must be judged again: it has the approval then. `None`: there is no decision within
    /// `limit`, or the server stops. Cancel safe.
    pub async fn decision(&self, flow: &mut Flow, limit: Duration) -> Option<Verdict> {
        let (approval, denials) = (self.approval, &self.denials);
        let deciding = self.ledger.wait(approval, limit);
        let outcome = flow.approval_record().while_held(deciding).await;
        Some(match outcome.map_err(unavailable).transpose()? {
            Ok(ApprovalOutcome::Granted(grant)) => {
                flow.put_slot(Approved {
                    approval,
                    digest: self.digest.clone(),
                    level: self.level,
                    grant: Promise {
                        grant,
                        ledger: Arc::clone(&self.ledger),
                    },
                });
                Ok(())
            }
            Ok(ApprovalOutcome::Denied(words)) => {
                Err(denials.rejected(flow, approval, words.as_deref()))
            }
            Ok(ApprovalOutcome::Used) => Err(denials.used(Some(approval))),
            Ok(ApprovalOutcome::Expired | ApprovalOutcome::Ended) => Err(self.expired()),
            Err(denial) => Err(denial),
        })
    }

    /// The denial of a call that a person approved, and that cannot be sent.
    pub fn unsent(&self) -> Denial {
        self.denials.unsent(self.approval)
    }

    /// The denial of a call whose question has expired.
    pub fn expired(&self) -> Denial {
        self.denials.ended(Some(self.approval))
    }
}

impl AskDenials {
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

    pub(super) fn pending(&self, approval: ApprovalId) -> Denial {
        let sentence = format!(
            "waits for a person (approval {approval}): repeat the same call once, in {REPEAT_AFTER}; do not poll"
        );
        self.deny(Some("pending"), Some(approval), &sentence)
    }

    /// The denial by a person, whose words are written on one line.
    pub(super) fn rejected(
        &self,
        flow: &mut Flow,
        approval: ApprovalId,
        words: Option<&str>,
    ) -> Denial {
        let words = words.unwrap_or_default().split_whitespace();
        let words = words.collect::<Vec<_>>().join(" ");
        let said = match words.is_empty() {
            true => "denied by a person".to_owned(),
            false => format!("denied by a person: {words}"),
        };
        flow.approval_record().set(approval);
        record(flow, Effect::DenyContinue, &said);
        let sentence = format!("{said}; do not repeat the call");
        self.deny(Some("denied"), Some(approval), &sentence)
    }

    /// The denial of a call whose question or grant is over.
    fn ended(&self, approval: Option<ApprovalId>) -> Denial {
        let sentence =
            "nobody decided in time, or the approval is over: repeat the call to ask again";
        self.deny(Some("expired"), approval, sentence)
    }

    fn unsent(&self, approval: ApprovalId) -> Denial {
        let sentence = "approved, but the call could not be sent: repeat the same call once";
        self.deny(Some("pending"), Some(approval), sentence)
    }

    fn changed(&self, approval: Option<ApprovalId>) -> Denial {
        let sentence = "approved, but the policies, the tool, its arguments or the security level changed meanwhile: repeat the call to ask again";
        self.deny(Some("expired"), approval, sentence)
    }

    fn used(&self, approval: Option<ApprovalId>) -> Denial {
        let sentence = "approved for one call, and an equal call got it: repeat the call only if it must run once more";
        self.deny(Some("used"), approval, sentence)
    }

    pub(super) fn full(&self, limit: &str) -> Denial {
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
