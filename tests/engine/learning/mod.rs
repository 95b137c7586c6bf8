//! Hosts that are approved for every container: `learned.yaml` and the ledger agree, whatever fails
//! and whenever the process ends.

mod crashes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, AuthMode, Container, ContainerId, Host, Learned,
    LearnedHost, Level, Question, QuestionKind, Source, Topic,
};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use unified_proxy::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use unified_proxy::approvals::{
    Decision, Learner, Ledger, LedgerPort, LiveGrants, NotLearned, Record, Refused, State,
};
use unified_proxy::config::{LearnedFile, MAX_LEARNED};
use unified_proxy::registry::sqlite::SqliteStore;
use unified_proxy::registry::{NewRegistration, Registry};

const TTL: Duration = Duration::from_secs(3600);
const HOST: &str = "files.example.com";

/// What a reload does besides reading the file.
type Meanwhile = Arc<parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A server's ledger, grants and file, without the server.
struct Fixture {
    directory: TempDir,
    container: Arc<Container>,
    ledger: Arc<Ledger>,
    grants: Arc<LiveGrants>,
    learner: Arc<Learner>,
    port: Arc<dyn ApprovalLedger>,
    /// Whether a reload fails, for example because of another file.
    reload_fails: Arc<AtomicBool>,
    meanwhile: Meanwhile,
}

fn by(name: &str) -> Decision {
    Decision {
        by: name.to_owned(),
        comment: None,
    }
}

/// Reads the file as a start or a reload does.
fn read(directory: &Path) -> Arc<Learned> {
    let hosts = LearnedFile::of(directory).read().unwrap();
    Arc::new(hosts.into_iter().collect())
}

impl Fixture {
    async fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap()).await
    }

    /// Starts in a directory, and settles what an earlier process has left.
    async fn start(directory: TempDir) -> Self {
        let file = |name: &str| directory.path().join(name);
        let registry = Registry::open(SqliteStore::new(file("registry.db")), directory.path());
        let id = ContainerId::parse("web").unwrap();
        let known = registry.get(&id).unwrap();
        let container = match known {
            Some(known) => known,
            None => {
                let new = NewRegistration {
                    id,
                    source: Source::Address([10_u8, 0, 0, 7].into()),
                    repos: Vec::new(),
                    auth_mode: AuthMode::User,
                    expires_at: OffsetDateTime::now_utc() + time::Duration::hours(1),
                    allowed_domains: None,
                };
                registry.register(new).await.unwrap().container
            }
        };
        let store = SqliteApprovals::new(file(FILE_NAME));
        let ledger = Ledger::open(store, Arc::new(OffsetDateTime::now_utc)).unwrap();
        let grants = LiveGrants::new(Arc::clone(&ledger), registry);
        let (reload_fails, meanwhile) = (Arc::new(AtomicBool::new(false)), Meanwhile::default());
        let (path, fails) = (directory.path().to_owned(), Arc::clone(&reload_fails));
        let (in_force, during) = (Arc::clone(&grants), Arc::clone(&meanwhile));
        let reload = move || {
            let failed = fails.load(Ordering::Relaxed);
            if !failed {
                in_force.learn(read(&path));
            }
            let during = during.lock().take();
            during.into_iter().for_each(|during| during());
            match failed {
                true => Err(vec!["policy.yaml:3:1: bad".to_owned()]),
                false => Ok(()),
            }
        };
        let path = directory.path().to_owned();
        let of_file = move || Some(LearnedFile::of(&path));
        let learner = Learner::new(Arc::clone(&ledger), Arc::clone(&grants), of_file, reload);
        learner.settle(&read(directory.path())).await;
        let port = Arc::new(LedgerPort {
            ledger: Arc::clone(&ledger),
            grants: Arc::clone(&grants),
            ttl: TTL,
            stopping: CancellationToken::new(),
        });
        Self {
            directory,
            container,
            ledger,
            grants,
            learner,
            port,
            reload_fails,
            meanwhile,
        }
    }

    /// Ends as in a crash, and starts again.
    async fn restart(self) -> Self {
        Self::start(self.directory).await
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("learned.yaml")
    }

    fn text(&self) -> Option<String> {
        fs::read_to_string(self.path()).ok()
    }

    /// Opens a question about the host at a port.
    async fn asked(&self, port: u16) -> ApprovalId {
        self.asked_at(port, Level::Confidential).await
    }

    async fn asked_at(&self, port: u16, level: Level) -> ApprovalId {
        let topic = Topic {
            lease: self.container.lease,
            container: self.container.id.clone(),
            kind: QuestionKind::Host,
            server: None,
            subject: format!("{HOST}:{port}").into(),
            rule: None,
            reason: None,
            level,
            revision: "r".into(),
        };
        let question = Question::new(topic, None).unwrap();
        match self.ledger.ask(question, TTL).await.unwrap() {
            ApprovalAnswer::Open(id) => id,
            other => panic!("not open: {other:?}"),
        }
    }

    async fn approve(&self, id: ApprovalId, decision: Decision) -> Result<Record, NotLearned> {
        self.learner.approve(id, decision, |_| ()).await
    }

    async fn revoke(&self, id: ApprovalId) -> Result<Option<LearnedHost>, NotLearned> {
        self.learner.revoke(id, |_| ()).await
    }

    async fn state(&self, id: ApprovalId) -> State {
        self.ledger.get(id).await.unwrap().unwrap().state
    }

    /// The ports of the host that are in force for a container that nobody asked for.
    fn ports(&self) -> Vec<u16> {
        let host = Host::parse(HOST).unwrap();
        // As under `unknown_hosts: deny`.
        let entry = self.port.entry_of(&self.container, &host, None, false);
        entry.map_or_else(Vec::new, |entry| entry.ports.clone())
    }

    /// The questions whose approvals are recorded as live grants.
    async fn recorded(&self) -> Vec<ApprovalId> {
        let grants = self.ledger.grants().await.unwrap();
        grants.iter().filter_map(|grant| grant.approval).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_for_everyone_is_written_in_force_and_recorded() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.asked(443).await, fixture.asked(8443).await);
    let record = fixture.approve(first, by("ann")).await.unwrap();
    assert_eq!((record.id, record.state), (first, State::Approved));
    assert_eq!(fixture.ports(), [443]);
    fixture.approve(second, by("bob")).await.unwrap();
    assert_eq!(fixture.ports(), [443, 8443]);
    let hosts = LearnedFile::of(fixture.directory.path()).read().unwrap();
    let known: Vec<_> = hosts
        .iter()
        .map(|one| (one.host.to_string(), one.port, &*one.author, one.question))
        .collect();
    assert_eq!(
        known,
        [
            (HOST.to_owned(), 443, "ann", first),
            (HOST.to_owned(), 8443, "bob", second)
        ]
    );
    let mode = fs::metadata(fixture.path()).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o600
    );
    // Up to the level that was shown.
    fixture.container.raise_level(Level::Secret);
    assert_eq!(fixture.ports(), [0; 0]);
    let at_secret = fixture.asked_at(443, Level::Secret).await;
    fixture.approve(at_secret, by("ann")).await.unwrap();
    assert_eq!(fixture.ports(), [443]);
    assert_eq!(fixture.recorded().await, [at_secret, second]);

    let fixture = fixture.restart().await;
    assert_eq!(fixture.recorded().await, [at_secret, second]);
    assert_eq!(fixture.grants.learned().iter().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_approval_at_a_lower_level_takes_nothing_back() {
    let fixture = Fixture::new().await;
    let low = fixture.asked(443).await;
    let high = fixture.asked_at(443, Level::Secret).await;
    assert_ne!(low, high);
    fixture.approve(high, by("ann")).await.unwrap();
    fixture.approve(low, by("bob")).await.unwrap();
    assert_eq!(fixture.recorded().await, [low]);
    fixture.container.raise_level(Level::Secret);
    assert_eq!(fixture.ports(), [443]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_reload_has_read_of_an_approval_that_fails_is_not_in_force() {
    let fixture = Fixture::new().await;
    let id = fixture.asked(443).await;
    fixture.reload_fails.store(true, Ordering::Relaxed);
    let read_early = Arc::new(parking_lot::Mutex::new(None));
    let (grants, path) = (
        Arc::clone(&fixture.grants),
        fixture.directory.path().to_owned(),
    );
    let list = Arc::clone(&read_early);
    let other = move || {
        let learned = read(&path);
        grants.learn(Arc::clone(&learned));
        *list.lock() = Some(learned);
    };
    *fixture.meanwhile.lock() = Some(Box::new(other));
    fixture.approve(id, by("ann")).await.unwrap_err();
    assert_eq!(fixture.ports(), [0; 0]);
    let read_early = read_early.lock().take().unwrap();
    assert_eq!(read_early.iter().count(), 1);
    fixture.grants.learn(read_early);
    assert_eq!(fixture.ports(), [0; 0]);
    fixture.reload_fails.store(false, Ordering::Relaxed);
    fixture.approve(id, by("ann")).await.unwrap();
    assert_eq!(fixture.ports(), [443]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_learning_is_switched_off_in_the_meantime_nothing_is_approved() {
    let fixture = Fixture::new().await;
    let id = fixture.asked(443).await;
    let grants = Arc::clone(&fixture.grants);
    *fixture.meanwhile.lock() = Some(Box::new(move || grants.learn(Arc::default())));
    let refused = fixture.approve(id, by("ann")).await.unwrap_err();
    assert!(matches!(refused, NotLearned::Off), "{refused}");
    assert_eq!(fixture.text(), None);
    assert_eq!(fixture.state(id).await, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_reload_fails_the_question_is_open_and_the_file_as_before() {
    let fixture = Fixture::new().await;
    for before in [None, Some("# mine\nversion: 1\ndomains: []\n")] {
        if let Some(text) = before {
            fs::write(fixture.path(), text).unwrap();
        }
        let id = fixture.asked(443).await;
        fixture.reload_fails.store(true, Ordering::Relaxed);
        let failed = fixture.approve(id, by("ann")).await.unwrap_err();
        assert!(
            failed.to_string().contains("policy.yaml:3:1: bad"),
            "{failed}"
        );
        assert_eq!(fixture.text().as_deref(), before);
        assert_eq!(fixture.state(id).await, State::Pending);
        assert_eq!(fixture.ports(), [0; 0]);
        fixture.reload_fails.store(false, Ordering::Relaxed);
    }
    let id = fixture.asked(443).await;
    fixture.approve(id, by("ann")).await.unwrap();
    assert_eq!(fixture.ports(), [443], "nothing is left of the failures");
    let entries = fs::read_dir(fixture.directory.path()).unwrap().flatten();
    let left = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_another_person_closes_in_the_meantime_is_not_learned() {
    let fixture = Fixture::new().await;
    let id = fixture.asked(443).await;
    let ledger = Arc::clone(&fixture.ledger);
    let deny = move || {
        let denied = ledger.deny(id, by("bob"));
        tokio::runtime::Handle::current().block_on(denied).unwrap();
    };
    *fixture.meanwhile.lock() = Some(Box::new(deny));
    let refused = fixture.approve(id, by("ann")).await.unwrap_err();
    let NotLearned::Refused(Refused::Decided(record)) = refused else {
        panic!("{refused}");
    };
    assert_eq!(record.decision.unwrap().by, "bob");
    assert_eq!(fixture.text(), None);
    assert_eq!(fixture.ports(), [0; 0]);
    // Later, it is refused before anything is written.
    let refused = fixture.approve(id, by("ann")).await.unwrap_err();
    assert!(
        refused.to_string().starts_with("bob has denied"),
        "{refused}"
    );
    assert_eq!(fixture.text(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_is_over_at_once_even_if_no_reload_succeeds() {
    let fixture = Fixture::new().await;
    let (first, second) = (fixture.asked(443).await, fixture.asked(8443).await);
    for id in [first, second] {
        fixture.approve(id, by("ann")).await.unwrap();
    }
    fixture.reload_fails.store(true, Ordering::Relaxed);
    let woken = fixture.container.level_changed();
    let revoked = fixture.revoke(first).await.unwrap().unwrap();
    assert_eq!((revoked.port, revoked.question), (443, first));
    assert_eq!(fixture.ports(), [8443]);
    let soon = Duration::from_secs(20);
    let woken = tokio::time::timeout(soon, woken).await;
    woken.expect("flows are judged again");
    assert_eq!(fixture.recorded().await, [second]);
    assert_eq!(fixture.revoke(first).await.unwrap(), None);
    let fixture = fixture.restart().await;
    assert_eq!(fixture.ports(), [8443]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_begins_that_goes_away_is_done_as_a_whole_and_told() {
    let fixture = Fixture::new().await;
    let id = fixture.asked(443).await;
    let soon = Duration::from_secs(20);
    let (tell, told) = oneshot::channel();
    let done = move |record: &Record| tell.send(record.state).unwrap();
    let approving = fixture.learner.approve(id, by("ann"), done);
    drop(tokio::time::timeout(Duration::ZERO, approving).await);
    let state = tokio::time::timeout(soon, told).await.expect("approved");
    assert_eq!(state.unwrap(), State::Approved);
    assert_eq!(fixture.state(id).await, State::Approved);
    assert_eq!(fixture.ports(), [443]);

    let (tell, told) = oneshot::channel();
    let done = move |learned: &LearnedHost| tell.send(learned.question).unwrap();
    let revoking = fixture.learner.revoke(id, done);
    drop(tokio::time::timeout(Duration::ZERO, revoking).await);
    let question = tokio::time::timeout(soon, told).await.expect("revoked");
    assert_eq!(question.unwrap(), id);
    assert_eq!(fixture.ports(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_a_full_file_is_refused_and_stays_as_it_is() {
    let fixture = Fixture::new().await;
    let id = fixture.asked(443).await;
    let entry = |number: usize| {
        format!(
            "- {{ domain: n{number}.example.com, ports: [443], max_level: Public, author: ann, \
             time: \"2030-01-01T12:00:00Z\", question: \"{number:032x}\" }}\n"
        )
    };
    let full: String = (0..MAX_LEARNED).map(entry).collect();
    for (text, said) in [
        (
            format!("version: 1\ndomains:\n{full}"),
            "entries or 1 MiB already",
        ),
        ("version: 1\ndomains:\n- x\n".to_owned(), "learned.yaml:3:3"),
        ("\u{0}".to_owned(), "learned.yaml:1"),
    ] {
        fs::write(fixture.path(), &text).unwrap();
        let refused = fixture.approve(id, by("ann")).await.unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
        assert_eq!(fixture.text().as_ref(), Some(&text));
        assert_eq!(fixture.state(id).await, State::Pending);
    }
}
