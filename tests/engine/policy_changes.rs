//! The policy that people set: its file and the ledger agree, whatever fails and whenever the process
//! ends.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::settings::Place;
use addons::contract::{
    ApprovalId, AuthMode, Container, ContainerId, LeaseId, Registration, Source, Standing,
};
use addons::mcp::{Bundle, McpSettings, PoliciesSettings};
use parking_lot::Mutex;
use tempfile::TempDir;
use testkit::each_row_async;
use time::OffsetDateTime;
use unified_proxy::approvals::sqlite::{FILE_NAME, SqliteApprovals};
use unified_proxy::approvals::{Decision, Ledger, Record, State};
use unified_proxy::config::{Config, StoredPolicy, StoredPolicyFile};
use unified_proxy::mcp::Machine;
use unified_proxy::mcp::policy::{NotSet, Policies, PolicyKeeper};
use unified_proxy::snapshot::Snapshot;
use unified_proxy::tls::UpstreamTls;
use unified_proxy::upstream::{Network, Resolver, SocketBudget};

use crate::loopback::{FakeContainers, Log, chain, config, upstream};

const OLD: &str = "package mcp.authz\n\ndecision := \"deny_continue\"\n";
const NEW: &str = "package mcp.authz\n\ndecision := \"allow\"\n";

/// A server's ledger, files and policies, without the server.
struct Fixture {
    directory: TempDir,
    container: Container,
    ledger: Arc<Ledger>,
    keeper: Arc<PolicyKeeper>,
    current: Arc<Mutex<Arc<Snapshot>>>,
    /// Whether a reload fails.
    reload_fails: Arc<AtomicBool>,
    /// The recorded changes.
    changes: Arc<AtomicUsize>,
}

fn by(name: &str) -> Decision {
    Decision {
        by: name.to_owned(),
        comment: None,
    }
}

/// The configuration of a server with one editable bundle.
fn configured(directory: &Path) -> Arc<Config> {
    let bundle = directory.join("bundle");
    fs::create_dir(&bundle).unwrap();
    fs::write(bundle.join("authz.rego"), OLD).unwrap();
    let bundle = Bundle {
        id: "main".into(),
        path: bundle,
        entrypoint: "mcp/authz".into(),
        methods: vec!["tools/call".into()],
        key: "policies.bundles[0]".into(),
        place: Place { line: 1, column: 1 },
    };
    let policies = PoliciesSettings {
        editable: Some(Arc::clone(&bundle.id)),
        bundles: vec![bundle],
        ..PoliciesSettings::default()
    };
    let mut config = config(upstream("127.0.0.1:9".parse().unwrap(), &[]));
    config.proxy.data_dir = directory.to_owned();
    config.addons.mcp = Arc::new(McpSettings {
        policies,
        ..McpSettings::default()
    });
    Arc::new(config)
}

/// Loads the policies as a start or a reload does.
pub fn loaded(config: &Arc<Config>) -> Arc<Snapshot> {
    let machine = Machine::new("".into(), Vec::new());
    let data_dir = Some(&*config.proxy.data_dir);
    let policies = Policies::load(&config.addons.mcp.policies, data_dir, &machine);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let containers = Arc::new(FakeContainers::at(&[]));
    Arc::new(Snapshot {
        unloaded_policies: Vec::new(),
        call_policies: String::new(),
        policy: Arc::clone(&policies.text),
        network: Arc::new(Network {
            generation: 1,
            chain: chain(&containers, &Log::default()),
            resolver: Arc::new(Resolver::new(&config.proxy.upstream).unwrap()),
            sockets: Arc::new(SocketBudget::new(8)),
            tls: UpstreamTls::load(None, provider).unwrap(),
            connect_timeout: Duration::from_secs(10),
        }),
        config: Arc::clone(config),
        containers,
    })
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = configured(directory.path());
        let store = SqliteApprovals::new(directory.path().join(FILE_NAME));
        let ledger = Ledger::open(store, Arc::new(OffsetDateTime::now_utc)).unwrap();
        let current = Arc::new(Mutex::new(loaded(&config)));
        let reload_fails = Arc::new(AtomicBool::new(false));
        let (read, replaced) = (Arc::clone(&current), Arc::clone(&current));
        let fails = Arc::clone(&reload_fails);
        let reload = move || match fails.load(Ordering::Relaxed) {
            true => Err(vec!["mcp.yaml:3:1: bad".to_owned()]),
            false => {
                *replaced.lock() = loaded(&config);
                Ok(())
            }
        };
        let keeper = PolicyKeeper::new(
            Arc::clone(&ledger),
            move || Arc::clone(&read.lock()),
            reload,
        );
        let id = ContainerId::parse("web").unwrap();
        let now = OffsetDateTime::now_utc();
        let container = Container::new(Registration {
            source: Source::Listener(id.clone()),
            id,
            lease: LeaseId::generate(),
            repos: Vec::new(),
            auth_mode: AuthMode::User,
            created_at: now,
            expires_at: now + time::Duration::HOUR,
            allowed_domains: None,
            standing: Standing::default(),
        });
        Self {
            directory,
            container,
            ledger,
            keeper,
            current,
            reload_fails,
            changes: Arc::default(),
        }
    }

    fn fail_reloads(&self, fail: bool) {
        self.reload_fails.store(fail, Ordering::Relaxed);
    }

    /// The text of the policy in force.
    fn in_force(&self) -> String {
        self.current.lock().policy.text.clone().unwrap().to_string()
    }

    fn stored(&self) -> Option<StoredPolicy> {
        StoredPolicyFile::of(self.directory.path()).read().unwrap()
    }

    fn proposed(&self) -> StoredPolicyFile {
        StoredPolicyFile::proposed(self.directory.path())
    }

    fn changes(&self) -> usize {
        self.changes.load(Ordering::Relaxed)
    }

    async fn propose(&self) -> ApprovalId {
        self.keeper.propose(&self.container, NEW).await.unwrap()
    }

    async fn approve(&self, id: ApprovalId) -> Result<Record, NotSet> {
        let changes = Arc::clone(&self.changes);
        let done = move |_: &_| {
            changes.fetch_add(1, Ordering::Relaxed);
        };
        self.keeper.approve(id, by("ann"), |_| {}, done).await
    }

    async fn set(&self, source: &str) -> Result<(), NotSet> {
        let changes = Arc::clone(&self.changes);
        let done = move |_: &_| {
            changes.fetch_add(1, Ordering::Relaxed);
        };
        let set = self.keeper.set(source.to_owned(), "ann".into(), done);
        set.await.map(drop)
    }

    async fn settle(&self) {
        let done = |_: &_| {
            self.changes.fetch_add(1, Ordering::Relaxed);
        };
        self.keeper.settle(done).await;
    }

    async fn state(&self, id: ApprovalId) -> State {
        self.ledger.get(id).await.unwrap().unwrap().state
    }
}

/// What became of a question before the process was killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Question {
    Open,
    Denied,
    Ended,
    Approved,
    ApprovedForAnotherText,
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_a_proposal_is_in_force_exactly_if_its_approval_is_recorded() {
    use Question::{Approved, ApprovedForAnotherText, Denied, Ended, Open, Unknown};
    each_row_async(
        [
            Open,
            Denied,
            Ended,
            Approved,
            ApprovedForAnotherText,
            Unknown,
        ],
        async |question| {
            let fixture = Fixture::new();
            let id = fixture.propose().await;
            let (written, source) = match question {
                Unknown => (ApprovalId::parse(&"0".repeat(32)).unwrap(), NEW),
                ApprovedForAnotherText => (id, "package mcp.authz\n"),
                _ => (id, NEW),
            };
            let at = "2030-01-01T00:00:00Z".to_owned();
            let policy = StoredPolicy::new("main", source.to_owned(), "ann", at, Some(written));
            fixture.proposed().write(Some(&policy)).unwrap();
            match question {
                Open | Unknown => {}
                Denied => drop(fixture.ledger.deny(id, by("bob")).await.unwrap()),
                Ended => fixture.ledger.end_leases(|_| false).await.unwrap(),
                Approved | ApprovedForAnotherText => {
                    let accept = |_: &_| Ok(());
                    let approved = fixture.ledger.approve_definition(id, by("ann"), accept);
                    approved.await.unwrap();
                }
            }
            // A reload in between.
            assert_eq!(fixture.in_force(), OLD);
            fixture.settle().await;
            let is_approved = question == Approved;
            assert_eq!(fixture.in_force(), if is_approved { NEW } else { OLD });
            assert_eq!(fixture.stored(), is_approved.then_some(policy));
            assert_eq!(fixture.proposed().read().unwrap(), None);
            assert_eq!(fixture.changes(), usize::from(is_approved));
            assert!(fixture.keeper.is_settled());
            fixture.settle().await;
            assert_eq!(fixture.changes(), usize::from(is_approved), "only once");
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_somebody_else_closed_leaves_no_policy() {
    let fixture = Fixture::new();
    let id = fixture.propose().await;
    fixture.ledger.deny(id, by("bob")).await.unwrap();
    let refused = fixture.approve(id).await.unwrap_err();
    assert!(refused.to_string().contains("bob has denied"), "{refused}");
    assert_eq!(fixture.in_force(), OLD);
    assert_eq!(fixture.stored(), None);
    assert_eq!(fixture.proposed().read().unwrap(), None);
    assert_eq!(fixture.changes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_policy_that_cannot_be_loaded_is_reported_and_loaded_before_the_next_change() {
    let fixture = Fixture::new();
    let id = fixture.propose().await;
    fixture.fail_reloads(true);
    let error = fixture.approve(id).await.unwrap_err();
    assert!(
        error.to_string().contains("stored, but not in force"),
        "{error}"
    );
    assert_eq!(fixture.in_force(), OLD);
    assert_eq!(fixture.state(id).await, State::Approved);
    assert_eq!(fixture.changes(), 1, "recorded in the audit");
    assert!(!fixture.keeper.is_settled());
    // Nothing else is changed on top of it.
    assert!(fixture.set(OLD).await.is_err());
    assert_eq!(fixture.stored().unwrap().source, NEW);
    fixture.fail_reloads(false);
    let decided = fixture.approve(id).await.unwrap_err();
    assert!(decided.to_string().contains("has approved"), "{decided}");
    assert_eq!(fixture.in_force(), NEW);
    assert!(fixture.keeper.is_settled());
    assert_eq!(fixture.changes(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_that_cannot_be_written_is_not_approved() {
    let fixture = Fixture::new();
    let id = fixture.propose().await;
    // A directory cannot be replaced by a file.
    fs::create_dir(fixture.proposed().path()).unwrap();
    assert!(matches!(fixture.approve(id).await, Err(NotSet::File(_))));
    assert_eq!(fixture.state(id).await, State::Pending);
    assert_eq!(fixture.in_force(), OLD);
    fs::remove_dir(fixture.proposed().path()).unwrap();
    fixture.approve(id).await.unwrap();
    assert_eq!(fixture.in_force(), NEW);
    let reset = fixture.keeper.reset(|_| {}).await;
    reset.unwrap();
    assert_eq!(fixture.in_force(), OLD);
    assert_eq!(fixture.stored(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_text_proposed_for_another_policy_in_force_is_another_question() {
    let fixture = Fixture::new();
    let first = fixture.propose().await;
    fixture
        .set("package mcp.authz\n\ndecision := \"ask\"\n")
        .await
        .unwrap();
    let outdated = fixture.approve(first).await.unwrap_err();
    assert!(matches!(outdated, NotSet::Outdated), "{outdated}");
    assert_ne!(fixture.propose().await, first);
}
