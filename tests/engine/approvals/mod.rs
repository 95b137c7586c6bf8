//! The ledger of approvals: states, bounds, waiting, and durability.

mod bounds;
mod durability;
mod grants;
mod model;
mod states;
mod waiting;
mod watching;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalOutcome, ContainerId, GrantId, LeaseId, Level, Question,
    QuestionKind, QuestionLimit, Topic,
};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tempfile::TempDir;
use time::OffsetDateTime;
use unified_proxy::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use unified_proxy::approvals::{
    ApprovalStore, Asked, Decision, Filter, Ledger, News, Record, Refused, Scope, State,
    StoreError, Target,
};

const TTL: Duration = Duration::from_secs(3600);

fn start() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn by(name: &str) -> Decision {
    Decision {
        by: name.to_owned(),
        comment: None,
    }
}

fn because(name: &str, words: &str) -> Decision {
    Decision {
        by: name.to_owned(),
        comment: Some(words.into()),
    }
}

/// A container with a lease.
#[derive(Clone)]
struct Sandbox {
    container: ContainerId,
    lease: LeaseId,
}

impl Sandbox {
    fn new(name: &str) -> Self {
        Self {
            container: ContainerId::parse(name).unwrap(),
            lease: LeaseId::generate(),
        }
    }

    fn topic(&self, kind: QuestionKind, subject: &str) -> Topic {
        let has_server = matches!(kind, QuestionKind::Tool | QuestionKind::Definition);
        Topic {
            lease: self.lease,
            container: self.container.clone(),
            kind,
            server: has_server.then(|| "files".into()),
            subject: subject.into(),
            rule: Some("freeze".into()),
            reason: Some("no deletes on Fridays".into()),
            level: Level::Public,
            revision: "r1".into(),
        }
    }

    /// A question about a tool's call with this number as its argument.
    fn call(&self, number: usize) -> Question {
        let arguments = RawValue::from_string(format!("{{\"n\":{number}}}")).unwrap();
        let topic = self.topic(QuestionKind::Tool, "delete");
        Question::new(topic, Some(&arguments)).unwrap()
    }

    fn host(&self, host: &str) -> Question {
        Question::new(self.topic(QuestionKind::Host, host), None).unwrap()
    }

    fn question(&self, kind: QuestionKind) -> Question {
        Question::new(self.topic(kind, "subject"), None).unwrap()
    }
}

/// A store in a temporary directory, with a clock of its own.
struct Store {
    directory: TempDir,
    store: SqliteApprovals,
    now: OffsetDateTime,
}

impl Store {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        Self {
            directory,
            store,
            now: start(),
        }
    }

    /// Opens the file again, as after a restart.
    fn reopen(&mut self) {
        self.store = open(&self.directory);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn ask(&mut self, question: &Question) -> Asked {
        self.store.ask(question, TTL, self.now).unwrap()
    }

    /// Asks a question that must be open then.
    fn opened(&mut self, question: &Question) -> ApprovalId {
        match self.ask(question) {
            Asked::Open(id) => id,
            other => panic!("not open: {other:?}"),
        }
    }

    fn granted(&mut self, question: &Question) -> GrantId {
        match self.ask(question) {
            Asked::Granted { grant, .. } => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn limited(&mut self, question: &Question) -> QuestionLimit {
        match self.ask(question) {
            Asked::Full(limit) => limit,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn approve(&mut self, id: ApprovalId, scope: Option<Scope>) -> Result<Record, Refused> {
        self.store.approve(id, scope, &by("ann"), self.now)
    }

    fn deny(&mut self, id: ApprovalId, words: &str) -> Result<Record, Refused> {
        self.store.deny(id, &because("bob", words), self.now)
    }

    fn state(&mut self, id: ApprovalId) -> State {
        self.store.get(id, self.now).unwrap().unwrap().state
    }

    fn uses(&mut self, grant: GrantId, sandbox: &Sandbox) -> bool {
        let used = self.store.use_grant(grant, sandbox.lease, self.now);
        used.unwrap()
    }

    fn news(&mut self) -> Vec<News> {
        let changes = self.store.take_changes();
        changes.into_iter().map(|change| change.news).collect()
    }
}

fn open(directory: &TempDir) -> SqliteApprovals {
    let mut store = SqliteApprovals::new(directory.path().join(FILE_NAME));
    store.open().unwrap();
    store
}

/// The status that the API gives for a refused operation, and who decided.
fn refusal<T>(done: Result<T, Refused>) -> (u16, Option<String>) {
    match done {
        Ok(_) => (200, None),
        Err(Refused::Unknown) => (404, None),
        Err(Refused::Decided(record)) => (409, Some(record.decision.unwrap().by)),
        Err(Refused::Over(_) | Refused::GrantOver) => (410, None),
        Err(Refused::Scope(_) | Refused::NotInForce(_)) => (422, None),
        Err(Refused::NotDenied) => (409, None),
        Err(Refused::Store(error)) => panic!("{error}"),
    }
}

/// A ledger in a temporary directory, with a clock of its own.
struct Office {
    ledger: Arc<Ledger>,
    clock: Arc<Mutex<OffsetDateTime>>,
    directory: TempDir,
}

type Wait = Pin<Box<dyn Future<Output = Result<ApprovalOutcome, StoreError>> + Send>>;

impl Office {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(Mutex::new(start()));
        let now = Arc::clone(&clock);
        let store = SqliteApprovals::new(directory.path().join(FILE_NAME));
        Self {
            ledger: Ledger::open(store, Arc::new(move || *now.lock())).unwrap(),
            clock,
            directory,
        }
    }

    fn pass(&self, time: Duration) {
        *self.clock.lock() += time;
    }

    async fn ask(&self, question: &Question) -> ApprovalAnswer {
        self.ledger.ask(question.clone(), TTL).await.unwrap()
    }

    async fn opened(&self, question: &Question) -> ApprovalId {
        match self.ask(question).await {
            ApprovalAnswer::Open(id) => id,
            other => panic!("not open: {other:?}"),
        }
    }

    /// Begins to wait; returns when the caller is in the question's queue.
    async fn wait(&self, id: ApprovalId) -> Wait {
        let ledger = Arc::clone(&self.ledger);
        let mut wait: Wait = Box::pin(async move { ledger.wait(id).await });
        assert!(poll_once(&mut wait).await.is_none());
        wait
    }

    async fn approve(&self, id: ApprovalId, scope: Option<Scope>) -> Record {
        self.ledger.approve(id, scope, by("ann")).await.unwrap()
    }

    async fn waiting(&self, id: ApprovalId) -> usize {
        self.ledger.get(id).await.unwrap().unwrap().waiting
    }

    async fn grant_of(&self, id: ApprovalId) -> GrantId {
        let grants = self.ledger.grants().await.unwrap();
        grants
            .into_iter()
            .find(|grant| grant.approval == Some(id))
            .unwrap()
            .id
    }
}

async fn poll_once(wait: &mut Wait) -> Option<ApprovalOutcome> {
    poll_fn(|context| {
        Poll::Ready(match wait.as_mut().poll(context) {
            Poll::Ready(outcome) => Some(outcome.unwrap()),
            Poll::Pending => None,
        })
    })
    .await
}
