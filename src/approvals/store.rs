//! The store in which questions and grants outlive the process.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use addons::contract::{ApprovalId, ContainerId, GrantId, LeaseId, Question, QuestionKind};
use thiserror::Error;
use time::OffsetDateTime;

use super::record::{Asked, Change, Decision, Grant, Record, Scope, State, Target};

/// Keeps questions and grants durably. Several proxies may share the storage behind a store.
///
/// `Display` is the store's name for operators, for example its path. Methods block; the ledger
/// calls them on blocking threads, one at a time. Times have a resolution of a millisecond.
///
/// When a method returns `Ok`, its change is durable. After [`StoreError`], the change may or may
/// not have been made, so that its caller must deny. Each method first expires the questions whose
/// time is over at `now`. For an unknown id, an operation fails with [`Refused::Unknown`].
pub trait ApprovalStore: fmt::Display + Send {
    /// Checks that the store can be read. Creates a missing one, and migrates one of an older
    /// version. The ledger calls `open` once, before the other methods, and calls those even if
    /// `open` fails.
    fn open(&mut self) -> Result<(), StoreError>;

    /// Returns the changes that were made since the last call, in their order, also by other proxies.
    fn take_changes(&mut self) -> Vec<Change>;

    /// Answers a question from a denial or a grant, joins the equal open question, or opens a new
    /// one, which expires after `ttl`. A denial comes before a grant. A grant or an open question
    /// answers only up to its security level.
    fn ask(
        &mut self,
        question: &Question,
        ttl: Duration,
        now: OffsetDateTime,
    ) -> Result<Asked, StoreError>;

    /// What [`ask`](Self::ask) would answer from a denial, a grant or an open question; `None` if it
    /// would open a question, or refuse to. Changes nothing else.
    fn look_up(
        &mut self,
        question: &Question,
        now: OffsetDateTime,
    ) -> Result<Option<Asked>, StoreError>;

    /// Returns a question.
    fn get(&mut self, id: ApprovalId, now: OffsetDateTime) -> Result<Option<Record>, StoreError>;

    /// Returns questions, the newest first.
    fn list(&mut self, filter: &Filter, now: OffsetDateTime) -> Result<Vec<Record>, StoreError>;

    /// Returns the ids of a lease's open questions.
    fn pending(
        &mut self,
        container: &ContainerId,
        lease: LeaseId,
        now: OffsetDateTime,
    ) -> Result<Vec<ApprovalId>, StoreError>;

    /// Approves an open question. `scope` is [`Scope::default_of`] its kind if it is `None`. A
    /// grant for one execution ends after the time that the question had to be decided.
    fn approve(
        &mut self,
        id: ApprovalId,
        scope: Option<Scope>,
        decision: &Decision,
        now: OffsetDateTime,
    ) -> Result<Record, Refused>;

    /// Denies an open question. The denial answers equal questions for the time that the question
    /// had to be decided.
    fn deny(
        &mut self,
        id: ApprovalId,
        decision: &Decision,
        now: OffsetDateTime,
    ) -> Result<Record, Refused>;

    /// Lets equal questions to a denied one be asked again.
    fn forget(&mut self, id: ApprovalId, now: OffsetDateTime) -> Result<Record, Refused>;

    /// Uses a grant of a lease: returns whether it is live, and ends it if it is for one execution.
    /// Of all calls for such a grant, also of other proxies and after a crash, one returns `true`.
    fn use_grant(
        &mut self,
        id: GrantId,
        lease: LeaseId,
        now: OffsetDateTime,
    ) -> Result<bool, StoreError>;

    /// The grant of an approved question, if it is live.
    fn grant_of(
        &mut self,
        id: ApprovalId,
        now: OffsetDateTime,
    ) -> Result<Option<Grant>, StoreError>;

    /// Returns the live grants, the newest first.
    fn grants(&mut self, now: OffsetDateTime) -> Result<Vec<Grant>, StoreError>;

    /// Gives a grant without a question, for a time or until the lease ends.
    fn add_grant(
        &mut self,
        target: Target,
        scope: Scope,
        by: &str,
        now: OffsetDateTime,
    ) -> Result<Grant, Refused>;

    /// Ends a live grant.
    fn revoke(&mut self, id: GrantId, now: OffsetDateTime) -> Result<Grant, Refused>;

    /// Ends the open questions and the grants of all leases for which `is_live` is false, except
    /// grants for everyone.
    fn end_leases(
        &mut self,
        is_live: &dyn Fn(LeaseId) -> bool,
        now: OffsetDateTime,
    ) -> Result<(), StoreError>;

    /// Expires the open questions for which `is_current` is false since the rules that asked have
    /// changed, and ends unused grants for one execution of such questions.
    fn end_outdated(
        &mut self,
        is_current: &dyn Fn(&Record) -> bool,
        now: OffsetDateTime,
    ) -> Result<(), StoreError>;

    /// Expires the questions whose time is over.
    fn expire(&mut self, now: OffsetDateTime) -> Result<(), StoreError>;

    /// Deletes decided questions beyond [`KEPT_AFTER_DECISION`](super::bounds::KEPT_AFTER_DECISION)
    /// and [`MAX_DECIDED`](super::bounds::MAX_DECIDED), and their grants. Of the latter, those go
    /// first that no person decided. A question that still answers equal ones stays.
    fn prune(&mut self, now: OffsetDateTime) -> Result<(), StoreError>;
}

/// Which questions are listed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub state: Option<State>,
    pub kind: Option<QuestionKind>,
    pub container: Option<ContainerId>,
    /// At most this many, and [`MAX_PAGE`](super::bounds::MAX_PAGE).
    pub limit: Option<usize>,
    /// Only questions that are older than this one: the last of the page before. None are, if this
    /// question is no longer kept.
    pub before: Option<ApprovalId>,
}

/// Why a store could not be read or written.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct StoreError(#[source] pub Box<dyn Error + Send + Sync>);

/// Why an operator's operation was refused.
#[derive(Debug, Error)]
pub enum Refused {
    #[error("there is no such question or grant: it may have been deleted after 30 days")]
    Unknown,
    #[error("{}", decided(.0))]
    Decided(Box<Record>),
    #[error("{}", over(.0))]
    Over(Box<Record>),
    #[error("the grant has ended already")]
    GrantOver,
    #[error("the question was not denied, or the denial is over: there is nothing to forget")]
    NotDenied,
    #[error(
        "an approval of kind {} can have the scopes {}; a time is from 1s to 24h",
        .0.as_str(),
        Scope::names(*.0).join(", ")
    )]
    Scope(QuestionKind),
    /// What was approved could not be put in force.
    #[error("the question stays open: {0}")]
    NotInForce(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn decided(record: &Record) -> String {
    let by = record
        .decision
        .as_ref()
        .map_or("another person", |decision| &decision.by);
    let verb = if record.state == State::Denied {
        "denied"
    } else {
        "approved"
    };
    format!("{by} has {verb} the question already")
}

fn over(record: &Record) -> &'static str {
    match record.state {
        State::Ended => "the container's lease has ended, and its questions with it",
        _ => {
            "nobody decided in time, or the rules that asked have changed; the question opens again when it is asked again"
        }
    }
}
