//! Questions and grants as the ledger keeps them.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    ApprovalId, ContainerId, GrantId, LeaseId, Level, QuestionKind, QuestionLimit, Topic,
};
use time::OffsetDateTime;

use super::bounds::{DEFAULT_GRANT, MAX_GRANT};

/// The state of a question. `Pending` becomes `Approved`, `Denied`, `Expired` or `Ended`, and
/// `Approved` becomes `Used` if the approval was for one execution. There is no other change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Pending,
    Approved,
    /// The approval was for one execution, and that was begun.
    Used,
    Denied,
    /// Nobody decided in time, or the rules that asked have changed.
    Expired,
    /// The lease ended.
    Ended,
}

impl State {
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Approved,
        Self::Used,
        Self::Denied,
        Self::Expired,
        Self::Ended,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Used => "used",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Ended => "ended",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// What an approval covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One execution of exactly what was asked.
    Once,
    /// The subject of the question, for this container, for a time.
    For(Duration),
    /// The subject of the question, until the container's lease ends.
    Lease,
    /// The subject of the question, for everyone. The caller puts it in force; the ledger keeps
    /// only a record of it.
    Always,
}

impl Scope {
    /// `once`, `for`, `lease` or `always`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::For(_) => "for",
            Self::Lease => "lease",
            Self::Always => "always",
        }
    }

    /// The names of the scopes that an approval of this kind can have. The definition of a tool and
    /// the policy are in force for everyone or not at all.
    pub const fn names(kind: QuestionKind) -> &'static [&'static str] {
        match kind {
            QuestionKind::Tool => &["once", "for", "lease"],
            QuestionKind::Request => &["for", "lease"],
            QuestionKind::Host => &["for", "lease", "always"],
            QuestionKind::Definition | QuestionKind::Policy => &["always"],
        }
    }

    /// The scope of an approval that names none.
    pub const fn default_of(kind: QuestionKind) -> Self {
        match kind {
            QuestionKind::Tool => Self::Once,
            QuestionKind::Request | QuestionKind::Host => Self::For(DEFAULT_GRANT),
            QuestionKind::Definition | QuestionKind::Policy => Self::Always,
        }
    }

    /// Whether an approval of this kind can have the scope. A time is at least a second and at most
    /// [`MAX_GRANT`].
    pub fn fits(self, kind: QuestionKind) -> bool {
        let in_range = match self {
            Self::For(time) => (Duration::from_secs(1)..=MAX_GRANT).contains(&time),
            _ => true,
        };
        in_range && Self::names(kind).contains(&self.as_str())
    }
}

/// A decision of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Who decided, as text for the audit: a user of the machine, or the subject of a token.
    pub by: String,
    /// The person's words. Those of a denial reach the agent.
    pub comment: Option<Arc<str>>,
}

/// A question in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: ApprovalId,
    pub state: State,
    pub topic: Topic,
    /// The arguments in their canonical form; `None` if there were none, or if those of a decided
    /// question made room for another question's.
    pub arguments: Option<String>,
    /// See [`Question::digest`](addons::contract::Question::digest).
    pub digest: String,
    pub created_at: OffsetDateTime,
    /// When the question expires without a decision.
    pub expires_at: OffsetDateTime,
    /// How often the question was asked. After a restart, repetitions before it do not count.
    pub attempts: u64,
    /// The callers that wait now.
    pub waiting: usize,
    /// The decision; `None` unless the question is approved, used or denied.
    pub decision: Option<Decision>,
    /// When the question stopped to be open.
    pub closed_at: Option<OffsetDateTime>,
    /// Until when a denial answers equal questions.
    pub denied_until: Option<OffsetDateTime>,
}

impl Record {
    /// The time in which the question had to be decided.
    pub fn time_to_decide(&self) -> Duration {
        (self.expires_at - self.created_at).unsigned_abs()
    }
}

/// What an approval gives, or an operator without a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub id: GrantId,
    /// The approved question.
    pub approval: Option<ApprovalId>,
    pub target: Target,
    pub scope: Scope,
    /// Who gave it.
    pub by: String,
    pub created_at: OffsetDateTime,
    /// When it ends. `None`: it has no time limit.
    pub expires_at: Option<OffsetDateTime>,
    pub used_at: Option<OffsetDateTime>,
    /// When it was revoked, or ended with its lease or with the rules that asked.
    pub ended_at: Option<OffsetDateTime>,
}

impl Grant {
    /// Whether the grant can still answer a question.
    pub fn is_live(&self, now: OffsetDateTime) -> bool {
        let expired = self.expires_at.is_some_and(|at| at <= now);
        !expired && self.used_at.is_none() && self.ended_at.is_none()
    }
}

/// What a grant covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub container: ContainerId,
    pub lease: LeaseId,
    pub kind: QuestionKind,
    pub server: Option<Box<str>>,
    /// See [`Topic::subject`].
    pub subject: Box<str>,
    /// The highest security level of the container at which the grant answers.
    pub level: Level,
}

impl From<&Topic> for Target {
    fn from(topic: &Topic) -> Self {
        Self {
            container: topic.container.clone(),
            lease: topic.lease,
            kind: topic.kind,
            server: topic.server.clone(),
            subject: topic.subject.clone(),
            level: topic.level,
        }
    }
}

/// What the store answers to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Granted {
        grant: GrantId,
        /// The question from which the grant came.
        approval: Option<ApprovalId>,
    },
    Denied {
        approval: ApprovalId,
        words: Option<Arc<str>>,
    },
    Open(ApprovalId),
    Full(QuestionLimit),
}

/// A change in the store, for those who wait and those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The question; `None` for a grant without one.
    pub approval: Option<ApprovalId>,
    pub container: ContainerId,
    pub lease: LeaseId,
    pub news: News,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A new question.
    Opened,
    /// An approval, with its grant.
    Approved {
        grant: GrantId,
        once: bool,
    },
    Denied(Option<Arc<str>>),
    /// The denial no longer answers equal questions.
    Forgotten,
    /// The grant for one execution was used.
    Used(GrantId),
    Expired,
    /// The lease of the question ended.
    Ended,
    /// An operator gave a grant without a question.
    Granted(GrantId),
    /// A grant was revoked, or ended with its lease or with the rules that asked.
    GrantEnded(GrantId),
}
