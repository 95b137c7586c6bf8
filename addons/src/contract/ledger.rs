//! The port to the ledger of approvals: questions to people, and the grants that they gave.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use time::OffsetDateTime;

use super::approval::{
    ApprovalAnswer, ApprovalId, ApprovalOutcome, GrantId, Question, QuestionKind,
};
use super::body::BoxFuture;
use super::container::Container;
use super::entry::{Entry, HostPattern, Origin, is_public_name};
use super::host::Host;
use super::learned::Learned;
use super::lease_id::LeaseId;
use super::level::Level;
use super::ports::Unavailable;

/// The label of the entry of every granted host, so that people's approvals add one value to the
/// labels of metrics.
pub const GRANTED: &str = "granted";

/// A grant that answers the questions of one lease about one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGrant {
    /// The id of the grant.
    pub id: GrantId,
    /// The kind of the questions.
    pub kind: QuestionKind,
    /// See [`Topic::subject`](super::Topic::subject).
    pub subject: Box<str>,
    /// The highest security level of the container at which the grant answers.
    pub level: Level,
    /// When the grant ends; `None` if it ends with the lease.
    pub ends: Option<OffsetDateTime>,
    /// Whether an operator gave it without a question. Such a grant permits its host under
    /// `policy.unknown_hosts: deny`, too.
    pub is_unasked: bool,
}

impl LiveGrant {
    /// Whether the grant has not ended at `now`.
    pub fn is_live(&self, now: OffsetDateTime) -> bool {
        self.ends.is_none_or(|ends| now < ends)
    }

    fn answers(&self, kind: QuestionKind, level: Level, now: OffsetDateTime) -> bool {
        self.kind == kind && level <= self.level && self.is_live(now)
    }

    /// The port of a grant for this host; `None` if the grant is for another subject.
    fn port_of(&self, host: &str) -> Option<u16> {
        let port = self.subject.strip_prefix(host)?.strip_prefix(':')?;
        port.parse().ok()
    }
}

/// The ledger of approvals, as addons see it.
pub trait ApprovalLedger: Send + Sync {
    /// The grants of a lease, in memory, without those for one execution. May contain grants that
    /// have ended: see [`LiveGrant::is_live`].
    fn live(&self, lease: LeaseId) -> Arc<[LiveGrant]>;

    /// The hosts that people approved for every container, in memory. By default, there are none.
    fn learned(&self) -> Arc<Learned> {
        Arc::default()
    }

    /// How long a question waits for a decision.
    fn ttl(&self) -> Duration;

    /// Asks a question. Once the future returns [`ApprovalAnswer::Granted`] for a grant that is not
    /// for one execution, [`live`](Self::live) returns that grant.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>>;

    /// What answers a question now, without asking it; `None` if it would be opened. For dry runs.
    fn look_up(
        &self,
        question: Question,
    ) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>>;

    /// Waits for the decision of a question; `None` if there is none within `limit`. As for
    /// [`ask`](Self::ask), the grant is in memory then.
    fn wait(
        &self,
        id: ApprovalId,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>>;

    /// Gives back a grant that [`wait`](Self::wait) returned, so that the next caller that waits
    /// gets it. Does nothing if it was used, or is not for one execution.
    fn release(&self, id: GrantId);

    /// Uses a grant of a lease, right before what it permits is sent; `false` if it has ended, or
    /// was for one execution and is used.
    fn use_grant(&self, id: GrantId, lease: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>>;
}

impl dyn ApprovalLedger {
    /// The live grant of a container that answers a question about this subject.
    pub fn find(
        &self,
        container: &Container,
        kind: QuestionKind,
        subject: &str,
    ) -> Option<LiveGrant> {
        let (level, now) = (container.level(), OffsetDateTime::now_utc());
        let grants = self.live(container.lease);
        let mut grants = grants.iter();
        let found =
            grants.find(|grant| *grant.subject == *subject && grant.answers(kind, level, now));
        found.cloned()
    }

    /// The entry of a host that was granted to a container or approved for every container, at this
    /// port or, if `port` is `None`, at any port. Approvals for one container count only if people
    /// are asked about unlisted hosts.
    pub fn entry_of(
        &self,
        container: &Container,
        host: &Host,
        port: Option<u16>,
        asks: bool,
    ) -> Option<Arc<Entry>> {
        let (level, now) = (container.level(), OffsetDateTime::now_utc());
        let name = host.name()?;
        let grants = self.live(container.lease);
        let granted = grants.iter().filter_map(|grant| {
            let port = grant.port_of(name)?;
            let counts =
                (asks || grant.is_unasked) && grant.answers(QuestionKind::Host, level, now);
            counts.then(|| (port, grant.level, grant.id.to_string()))
        });
        let learned = self.learned();
        let learned = learned.of(host).iter();
        let learned = learned.filter(|one| level <= one.max_level);
        let learned = learned.map(|one| (one.port, one.max_level, one.question.to_string()));
        let answering = learned.chain(granted);
        let answering = answering.filter(|(granted, ..)| port.is_none_or(|port| port == *granted));
        let answering: Vec<_> = answering.collect();
        let (_, _, first) = answering.first()?;
        if !is_public_name(host) {
            return None;
        }
        let levels = answering.iter().map(|(_, level, _)| *level);
        Some(Arc::new(Entry {
            pattern: HostPattern::Exactly(host.clone()),
            label: Arc::clone(&GRANTED_LABEL),
            ports: answering.iter().map(|(port, ..)| *port).collect(),
            websocket: true,
            max_level: levels.max().unwrap_or_default(),
            origin: GRANT_ORIGIN.clone(),
            grant: Some(first.as_str().into()),
        }))
    }
}

static GRANTED_LABEL: LazyLock<Arc<str>> = LazyLock::new(|| GRANTED.into());

static GRANT_ORIGIN: LazyLock<Origin> = LazyLock::new(|| Origin {
    file: "approvals".into(),
    line: 0,
});

/// A ledger that has no grants and takes no questions, for a chain without people.
pub struct NoLedger;

impl ApprovalLedger for NoLedger {
    fn live(&self, _: LeaseId) -> Arc<[LiveGrant]> {
        Arc::default()
    }

    fn ttl(&self) -> Duration {
        Duration::ZERO
    }

    fn ask(&self, _: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        Box::pin(std::future::ready(Err(Unavailable)))
    }

    fn look_up(&self, _: Question) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn wait(
        &self,
        _: ApprovalId,
        _: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        Box::pin(std::future::ready(Err(Unavailable)))
    }

    fn release(&self, _: GrantId) {}

    fn use_grant(&self, _: GrantId, _: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>> {
        Box::pin(std::future::ready(Err(Unavailable)))
    }
}
