//! Questions that a person decides, in place of a denial.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, Code, Container, Denial, Flow,
    GrantId, Host, Lookup, Principal, Question, QuestionKind, Room, Topic, Unavailable, Verdict,
    is_public_name,
};

/// The revision of the questions about unlisted hosts: they have no rule besides
/// `policy.unknown_hosts`.
pub(super) const HOST_REVISION: &str = "unknown_hosts: ask";

/// The setting that asks about unlisted hosts, as people and the audit see it.
pub const HOST_RULE: &str = "policy.unknown_hosts";

/// How long a step may take in addition to `approvals.hold`: the ledger writes the question, reads
/// the decision and marks the grant. Each takes at most 5 s.
const LEDGER_TIME: Duration = Duration::from_secs(20);

/// Why a flow does not pass yet.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is denied.
    Denied(Denial),
    /// A person decides.
    Asks(Box<Asking>),
}

impl From<Denial> for Stop {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

/// A question that is not asked yet.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) kind: QuestionKind,
    /// See [`Topic::subject`].
    pub(super) subject: String,
    pub(super) rule: String,
    pub(super) reason: Option<&'static str>,
    pub(super) revision: String,
    /// The denial of the flow if no person is asked.
    pub(super) otherwise: Denial,
}

impl Asking {
    /// The question about a host that is on no allowlist. `otherwise` is the denial of the flow.
    pub(super) fn about_host(flow: &Flow, otherwise: Denial) -> Self {
        Self {
            kind: QuestionKind::Host,
            subject: format!("{}:{}", flow.host(), flow.port()),
            rule: HOST_RULE.to_owned(),
            reason: Some("the host is on no allowlist"),
            revision: HOST_REVISION.to_owned(),
            otherwise,
        }
    }

    fn question(&self, container: &Container) -> Result<Question, Denial> {
        let topic = Topic {
            lease: container.lease,
            container: container.id.clone(),
            kind: self.kind,
            server: None,
            subject: self.subject.as_str().into(),
            rule: Some(self.rule.as_str().into()),
            reason: self.reason.map(Into::into),
            level: container.level(),
            revision: self.revision.as_str().into(),
        };
        Question::new(topic, None).map_err(|_| Denial::internal())
    }
}

/// The people who decide, behind the ledger of approvals.
pub(super) struct People {
    pub(super) ledger: Arc<dyn ApprovalLedger>,
    /// How long a flow waits for a decision before it is denied as pending.
    pub(super) hold: Duration,
}

impl People {
    /// The time limit of a step that asks.
    pub(super) fn limit(&self) -> Duration {
        self.hold.saturating_add(LEDGER_TIME)
    }

    /// The container of a flow about which a person may be asked. `None` for requests that the
    /// proxy sends itself.
    pub(super) fn asker(flow: &Flow) -> Option<&Arc<Container>> {
        match &flow.principal {
            Some(Principal::Container(container)) if flow.find_slot::<Lookup>().is_none() => {
                Some(container)
            }
            _ => None,
        }
    }

    /// Whether a person may be asked about a host: it is a public name that the container may
    /// reach.
    pub(super) fn may_be_asked_about(container: &Container, host: &Host) -> bool {
        is_public_name(host) && container.allows(host)
    }

    /// Asks a person, and waits for [`People::hold`] if there is room for another flow that waits.
    /// Returns `Ok` if a grant answers: the flow must then be judged again. A dry run asks nothing
    /// and is denied: see [`foresee`](Self::foresee).
    pub(super) async fn ask(&self, flow: &mut Flow, asking: Asking, room: &Room) -> Verdict {
        let Some(container) = Self::asker(flow).cloned() else {
            return Err(asking.otherwise);
        };
        let question = asking.question(&container)?;
        if flow.is_dry_run() {
            return Err(self.foresee(&asking, question).await);
        }
        let Asking {
            rule, otherwise, ..
        } = asking;
        let decided = match self.ledger.ask(question).await.map_err(unavailable)? {
            ApprovalAnswer::Granted { grant, approval } => {
                match approval {
                    Some(approval) => flow.approval_record().set(approval),
                    None => flow.approval_record().set(grant),
                }
                Decided::Granted(grant)
            }
            ApprovalAnswer::Denied { approval, words } => {
                flow.approval_record().set(approval);
                return Err(rejected(approval, &rule, words.as_deref()));
            }
            ApprovalAnswer::Open(approval) => self.decision(flow, approval, &rule, room).await?,
            ApprovalAnswer::Used => Decided::Not("used"),
            ApprovalAnswer::Full(limit) => {
                return Err(otherwise
                    .with("outcome", "full")
                    .with("reason", limit.to_string()));
            }
        };
        match decided {
            Decided::Granted(grant) => {
                let used = self.ledger.use_grant(grant, container.lease).await;
                match used.map_err(unavailable)? {
                    true => Ok(()),
                    false => Err(otherwise.with("outcome", "used")),
                }
            }
            Decided::Not(outcome) => Err(otherwise.with("outcome", outcome)),
        }
    }

    /// The denial of a dry run. The grants in memory do not answer, so it never passes, also while the
    /// ledger cannot be read.
    async fn foresee(&self, asking: &Asking, question: Question) -> Denial {
        match self.ledger.look_up(question).await {
            Ok(Some(ApprovalAnswer::Denied { approval, words })) => {
                rejected(approval, &asking.rule, words.as_deref())
            }
            Ok(Some(ApprovalAnswer::Open(approval))) => pending(approval, &asking.rule),
            _ => would_ask(asking),
        }
    }

    /// Waits for the decision of an open question.
    async fn decision(
        &self,
        flow: &mut Flow,
        approval: ApprovalId,
        rule: &str,
        room: &Room,
    ) -> Result<Decided, Denial> {
        let record = flow.approval_record();
        record.set(approval);
        if self.hold.is_zero() || !room.is_left().await {
            return Err(pending(approval, rule));
        }
        let deciding = self.ledger.wait(approval, self.hold);
        let outcome = record.while_held(deciding).await;
        match outcome.map_err(unavailable)? {
            Some(ApprovalOutcome::Granted(grant)) => Ok(Decided::Granted(grant)),
            Some(ApprovalOutcome::Denied(words)) => Err(rejected(approval, rule, words.as_deref())),
            Some(ApprovalOutcome::Used) => Ok(Decided::Not("used")),
            Some(ApprovalOutcome::Expired | ApprovalOutcome::Ended) => Ok(Decided::Not("expired")),
            None => Err(pending(approval, rule)),
        }
    }
}

enum Decided {
    Granted(GrantId),
    /// Nobody decided for this flow: the `outcome` of its denial.
    Not(&'static str),
}

fn pending(approval: ApprovalId, rule: &str) -> Denial {
    let sentence =
        format!("Waiting for approval {approval}: repeat the request after it was approved");
    about(Code::ApprovalPending, sentence, rule).with("approval", approval.to_string())
}

/// The denial by a person. The words are written on one line, since clients show the sentence as
/// the reason phrase of a response.
fn rejected(approval: ApprovalId, rule: &str, words: Option<&str>) -> Denial {
    let words = words.unwrap_or_default();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = match words.is_empty() {
        true => format!("Rejected by a person (approval {approval}): do not repeat the request"),
        false => format!("Rejected by a person (approval {approval}): {words}"),
    };
    about(Code::ApprovalRejected, sentence, rule).with("approval", approval.to_string())
}

/// The denial of a dry run, which opens no question.
fn would_ask(asking: &Asking) -> Denial {
    let subject = &asking.subject;
    let sentence = format!("Approval needed: a person would be asked about {subject}");
    let edit = asking.otherwise.edit();
    let instead = edit.map_or_else(String::new, |edit| format!(", or {edit}"));
    about(Code::ApprovalPending, sentence, &asking.rule).hint(format!(
        "let the container send the request and answer it with unified-proxy approvals{instead}"
    ))
}

fn about(code: Code, sentence: String, rule: &str) -> Denial {
    Denial::new(code, sentence).with("rule", rule).rule(rule)
}

fn unavailable(_: Unavailable) -> Denial {
    Denial::new(Code::RegistryUnavailable, "Registry unavailable").rule("approvals")
}

#[cfg(test)]
mod tests;
