//! The ledger of approvals: states, bounds, waiting, and durability.

mod bounds;
mod durability;
mod model;
mod states;
mod waiting;

use std::time::Duration;

use addons::contract::{
    ApprovalId, ContainerId, GrantId, LeaseId, Level, Question, QuestionKind, QuestionLimit, Topic,
};
use serde_json::value::RawValue;
use tempfile::TempDir;
use time::OffsetDateTime;
use unified_proxy::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use unified_proxy::approvals::{
    ApprovalStore, Asked, Decision, Filter, News, Record, Refused, Scope, State, Target,
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
            Asked::Granted(grant) => grant,
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
