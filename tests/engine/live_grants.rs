//! The grants in memory: they follow the ledger, and wake the flows of a lease that loses one.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, AuthMode, Container, ContainerId,
    Host, Level, Question, QuestionKind, Source, Topic,
};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use unified_proxy::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use unified_proxy::approvals::{Decision, Ledger, LedgerPort, LiveGrants, Scope, Target};
use unified_proxy::registry::sqlite::SqliteStore;
use unified_proxy::registry::{NewRegistration, Registry};

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);
const SUBJECT: &str = "files.example.com:443";

struct Fixture {
    container: Arc<Container>,
    ledger: Arc<Ledger>,
    grants: Arc<LiveGrants>,
    port: Arc<dyn ApprovalLedger>,
    stop: CancellationToken,
    _directory: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let registry = Registry::open(SqliteStore::new(file("registry.db")), directory.path());
        let registered = registry.register(NewRegistration {
            id: ContainerId::parse("web").unwrap(),
            source: Source::Address([10_u8, 0, 0, 7].into()),
            repos: Vec::new(),
            auth_mode: AuthMode::User,
            expires_at: OffsetDateTime::now_utc() + time::Duration::hours(1),
            allowed_domains: None,
        });
        let container = registered.await.unwrap().container;
        let store = SqliteApprovals::new(file(FILE_NAME));
        let ledger = Ledger::open(store, Arc::new(OffsetDateTime::now_utc)).unwrap();
        let grants = LiveGrants::new(Arc::clone(&ledger), registry);
        let port = LedgerPort {
            ledger: Arc::clone(&ledger),
            grants: Arc::clone(&grants),
            ttl: Duration::from_secs(3600),
            stopping: CancellationToken::new(),
        };
        Self {
            container,
            ledger,
            grants,
            port: Arc::new(port),
            stop: CancellationToken::new(),
            _directory: directory,
        }
    }

    /// Follows the ledger from now on.
    fn follow(&self) {
        tokio::spawn(Arc::clone(&self.grants).run(self.stop.clone()));
    }

    fn question(&self) -> Question {
        let topic = Topic {
            lease: self.container.lease,
            container: self.container.id.clone(),
            kind: QuestionKind::Host,
            server: None,
            subject: SUBJECT.into(),
            rule: None,
            reason: None,
            level: Level::Public,
            revision: "r".into(),
        };
        Question::new(topic, None).unwrap()
    }

    async fn opened(&self) -> ApprovalId {
        match self.port.ask(self.question()).await.unwrap() {
            ApprovalAnswer::Open(id) => id,
            other => panic!("not open: {other:?}"),
        }
    }

    async fn approve(&self, id: ApprovalId, scope: Scope) {
        let by = Decision {
            by: "ann".to_owned(),
            comment: None,
        };
        self.ledger.approve(id, Some(scope), by).await.unwrap();
    }

    async fn grant(&self, subject: &str, scope: Scope) -> addons::contract::GrantId {
        let target = Target {
            container: self.container.id.clone(),
            lease: self.container.lease,
            kind: QuestionKind::Host,
            server: None,
            subject: subject.into(),
            level: Level::Public,
        };
        let grant = self.ledger.add_grant(target, scope, "ann".to_owned());
        grant.await.unwrap().id
    }

    fn ports(&self) -> Vec<u16> {
        let host = Host::parse("files.example.com").unwrap();
        let entry = self.port.entry_of(&self.container, &host, None, true);
        entry.map_or_else(Vec::new, |entry| entry.ports.clone())
    }

    async fn until(&self, ports: &[u16]) {
        let waiting = async {
            while self.ports() != ports {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, waiting).await.expect("the grants in memory");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn a_granted_answer_is_in_memory_before_its_caller_has_it() {
    let fixture = Fixture::new().await;
    let id = fixture.opened().await;
    assert_eq!(fixture.ports(), [0; 0]);
    fixture.approve(id, Scope::Lease).await;
    // Nobody follows the ledger.
    assert_eq!(fixture.ports(), [0; 0]);
    let answer = fixture.port.ask(fixture.question()).await.unwrap();
    assert!(
        matches!(answer, ApprovalAnswer::Granted { .. }),
        "{answer:?}"
    );
    assert_eq!(fixture.ports(), [443]);
}

#[tokio::test]
async fn a_caller_that_waits_gets_the_decision_or_nothing_within_its_limit() {
    let fixture = Fixture::new().await;
    let id = fixture.opened().await;
    let none = fixture.port.wait(id, Duration::from_millis(20)).await;
    assert_eq!(none, Ok(None));
    let (decided, ()) = tokio::join!(
        fixture.port.wait(id, SOON),
        fixture.approve(id, Scope::For(SOON))
    );
    assert!(
        matches!(decided, Ok(Some(ApprovalOutcome::Granted(_)))),
        "{decided:?}"
    );
    assert_eq!(fixture.ports(), [443]);
}

#[tokio::test]
async fn grants_follow_the_ledger_and_their_end_wakes_the_flows_of_their_lease() {
    let fixture = Fixture::new().await;
    let before = fixture.grant("files.example.com:1", Scope::Lease).await;
    fixture.follow();
    fixture.until(&[1]).await;
    fixture
        .grant("files.example.com:2", Scope::For(Duration::from_secs(2)))
        .await;
    fixture.grant("other.example.com:3", Scope::Lease).await;
    let expired = fixture.container.level_changed();
    fixture.until(&[2, 1]).await;
    fixture.until(&[1]).await;
    timeout(SOON, expired)
        .await
        .expect("the end of the time wakes");
    let revoked = fixture.container.level_changed();
    fixture.ledger.revoke(before).await.unwrap();
    timeout(SOON, revoked).await.expect("the revocation wakes");
    assert_eq!(fixture.ports(), [0; 0]);
}
