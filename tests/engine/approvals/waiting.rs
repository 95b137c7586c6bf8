//! Callers that wait, operators that decide at the same time, and those who watch.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use addons::contract::{ApprovalAnswer, ApprovalOutcome};
use parking_lot::Mutex;
use testkit::each_row_async;
use tokio_util::sync::CancellationToken;
use unified_proxy::approvals::bounds::{MAX_BEHIND, PROMISED_FOR};
use unified_proxy::approvals::{Ledger, Seen, StoreError};

use super::*;

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

#[tokio::test]
async fn callers_learn_the_outcome_whether_they_wait_before_or_come_after_it() {
    let rows = [
        "denied",
        "for a time",
        "lease ended",
        "ttl",
        "rules",
        "revoked",
    ];
    each_row_async(rows, async |what| {
        let office = Office::new();
        let sandbox = Sandbox::new("c1");
        let id = office.opened(&sandbox.call(1)).await;
        let early = [office.wait(id).await, office.wait(id).await];
        assert_eq!(office.waiting(id).await, 2);
        let mut expected = ApprovalOutcome::Expired;
        match what {
            "denied" => {
                let decision = because("bob", "not on Fridays");
                office.ledger.deny(id, decision).await.unwrap();
                expected = ApprovalOutcome::Denied(Some("not on Fridays".into()));
            }
            "for a time" | "revoked" => {
                office.approve(id, Some(Scope::Lease)).await;
                expected = ApprovalOutcome::Granted(office.grant_of(id).await);
            }
            "lease ended" => {
                office.ledger.end_leases(|_| false).await.unwrap();
                expected = ApprovalOutcome::Ended;
            }
            "ttl" => {
                office.pass(TTL);
                office.ledger.end_leases(|_| true).await.unwrap();
            }
            _ => office.ledger.end_outdated(|_| false).await.unwrap(),
        }
        for wait in early {
            assert_eq!(wait.await.unwrap(), expected, "{what}");
        }
        if what == "revoked" {
            office
                .ledger
                .revoke(office.grant_of(id).await)
                .await
                .unwrap();
            expected = ApprovalOutcome::Expired;
        }
        assert_eq!(office.ledger.wait(id).await.unwrap(), expected, "{what}");
        assert_eq!(office.waiting(id).await, 0);
    })
    .await;
    let office = Office::new();
    let unknown = ApprovalId::generate().unwrap();
    let outcome = office.ledger.wait(unknown).await.unwrap();
    assert_eq!(outcome, ApprovalOutcome::Expired);
}

#[tokio::test]
async fn the_caller_that_has_waited_longest_gets_an_approval_for_one_execution() {
    let office = Office::new();
    let sandbox = Sandbox::new("c1");
    let id = office.opened(&sandbox.call(1)).await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(office.wait(id).await);
    }
    office.approve(id, None).await;
    let grant = office.grant_of(id).await;
    // The others are woken only when the first has taken it.
    let last = waits.pop().unwrap();
    for (at, wait) in waits.into_iter().enumerate() {
        let expected = match at {
            0 => ApprovalOutcome::Granted(grant),
            _ => ApprovalOutcome::Used,
        };
        assert_eq!(wait.await.unwrap(), expected, "{at}");
    }
    assert_eq!(last.await.unwrap(), ApprovalOutcome::Used);
    // Until it is used, no caller that comes later gets it.
    assert_eq!(office.ask(&sandbox.call(1)).await, ApprovalAnswer::Used);
    let late = office.ledger.wait(id).await.unwrap();
    assert_eq!(late, ApprovalOutcome::Used);
    assert!(office.ledger.use_grant(grant, sandbox.lease).await.unwrap());
    assert_ne!(office.opened(&sandbox.call(1)).await, id);
}

#[tokio::test]
async fn an_approval_that_its_caller_does_not_use_answers_the_next_equal_call() {
    let office = Office::new();
    let sandbox = Sandbox::new("c1");
    let id = office.opened(&sandbox.call(1)).await;
    let wait = office.wait(id).await;
    office.approve(id, None).await;
    let grant = office.grant_of(id).await;
    assert_eq!(wait.await.unwrap(), ApprovalOutcome::Granted(grant));
    office.pass(PROMISED_FOR - Duration::from_millis(1));
    assert_eq!(office.ask(&sandbox.call(1)).await, ApprovalAnswer::Used);
    office.pass(Duration::from_millis(1));
    let answer = office.ask(&sandbox.call(1)).await;
    assert_eq!(answer, ApprovalAnswer::Granted(grant));
}

#[tokio::test]
async fn a_caller_that_has_gone_leaves_the_approval_to_the_next_one() {
    // How many of three callers go before the approval, and after it.
    let rows = [
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (0, 2),
        (0, 3),
        (3, 0),
        (1, 2),
    ];
    each_row_async(rows, async |(before, after)| {
        let office = Office::new();
        let sandbox = Sandbox::new("c1");
        let id = office.opened(&sandbox.call(1)).await;
        let mut waits = Vec::new();
        for _ in 0..3 {
            waits.push(office.wait(id).await);
        }
        waits.drain(..before);
        assert_eq!(office.waiting(id).await, 3 - before);
        office.approve(id, None).await;
        waits.drain(..after);
        let grant = office.grant_of(id).await;
        if waits.is_empty() {
            let answer = office.ask(&sandbox.call(1)).await;
            assert_eq!(answer, ApprovalAnswer::Granted(grant));
        } else {
            let next = waits.remove(0);
            assert_eq!(next.await.unwrap(), ApprovalOutcome::Granted(grant));
        }
        assert!(office.ledger.use_grant(grant, sandbox.lease).await.unwrap());
        for wait in waits {
            assert_eq!(wait.await.unwrap(), ApprovalOutcome::Used);
        }
        assert_eq!(office.waiting(id).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_equal_calls_and_one_approval_are_one_execution() {
    let office = Arc::new(Office::new());
    let sandbox = Sandbox::new("c1");
    let id = office.opened(&sandbox.call(1)).await;
    let mut calls = Vec::new();
    for number in 1..=1000 {
        assert_eq!(office.opened(&sandbox.call(1)).await, id);
        let (ledger, lease) = (Arc::clone(&office.ledger), sandbox.lease);
        calls.push(tokio::spawn(async move {
            match ledger.wait(id).await.unwrap() {
                ApprovalOutcome::Granted(grant) => ledger.use_grant(grant, lease).await.unwrap(),
                other => {
                    assert_eq!(other, ApprovalOutcome::Used);
                    false
                }
            }
        }));
        // Not more than a hundred operations wait at once, however slow the disk is.
        while number % 100 == 0 && office.waiting(id).await < number {
            tokio::task::yield_now().await;
        }
    }
    let record = office.approve(id, None).await;
    assert_eq!(record.attempts, 1001);
    let mut executions = 0;
    for call in calls {
        executions += usize::from(call.await.unwrap());
    }
    assert_eq!(executions, 1);
    let record = office.ledger.get(id).await.unwrap().unwrap();
    assert_eq!(record.state, State::Used);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_operators_at_the_same_time_one_decides_and_the_others_learn_who() {
    let office = Arc::new(Office::new());
    let sandbox = Sandbox::new("c1");
    for round in 0..10 {
        let id = office.opened(&sandbox.call(round)).await;
        let operators = (0..8).map(|number| {
            let office = Arc::clone(&office);
            tokio::spawn(async move {
                let decision = by(&format!("operator {number}"));
                match number % 2 {
                    0 => office.ledger.approve(id, None, decision).await,
                    _ => office.ledger.deny(id, decision).await,
                }
            })
        });
        let operators: Vec<_> = operators.collect();
        let (mut decided, mut learned) = (Vec::new(), HashSet::new());
        for operator in operators {
            match operator.await.unwrap() {
                Ok(record) => decided.push(record),
                Err(Refused::Decided(record)) => {
                    learned.insert((record.decision.unwrap().by, record.state.as_str()));
                }
                Err(other) => panic!("{other}"),
            }
        }
        let [record] = decided.try_into().unwrap();
        let by = record.decision.unwrap().by;
        assert_eq!(learned, HashSet::from([(by, record.state.as_str())]));
    }
}

#[tokio::test]
async fn a_decision_whose_operator_has_gone_is_made_as_a_whole_or_not_at_all() {
    let office = Office::new();
    let sandbox = Sandbox::new("c1");
    for number in 0..20 {
        let id = office.opened(&sandbox.call(number)).await;
        let mut wait = office.wait(id).await;
        let mut deny = Box::pin(office.ledger.deny(id, because("bob", "no")));
        poll_fn(|context| Poll::Ready(drop(deny.as_mut().poll(context)))).await;
        drop(deny);
        let record = office.ledger.get(id).await.unwrap().unwrap();
        if record.state == State::Denied {
            let outcome = wait.await.unwrap();
            assert_eq!(outcome, ApprovalOutcome::Denied(Some("no".into())));
        } else {
            assert_eq!((record.state, record.waiting), (State::Pending, 1));
            assert_eq!(poll_once(&mut wait).await, None);
        }
    }
}

#[tokio::test]
async fn a_watcher_sees_every_change_or_learns_that_it_must_list_again() {
    let office = Office::new();
    let (mut quick, mut slow) = (office.ledger.watch(), office.ledger.watch());
    let sandbox = Sandbox::new("c1");
    let id = office.opened(&sandbox.call(1)).await;
    office.approve(id, None).await;
    let grant = office.grant_of(id).await;
    office.ledger.use_grant(grant, sandbox.lease).await.unwrap();
    let expected = [
        News::Opened,
        News::Approved { grant, once: true },
        News::Used(grant),
    ];
    for news in expected {
        match quick.next().await {
            Some(Seen::Changed(change)) => {
                assert_eq!((change.approval, change.news), (Some(id), news));
                assert_eq!(change.lease, sandbox.lease);
            }
            other => panic!("{other:?}"),
        }
    }
    for number in 0..MAX_BEHIND {
        let sandbox = Sandbox::new(&format!("c{number}"));
        office.opened(&sandbox.call(1)).await;
    }
    assert_eq!(slow.next().await, Some(Seen::Behind));
    for _ in 0..MAX_BEHIND {
        assert!(matches!(slow.next().await, Some(Seen::Changed(_))));
    }
    drop(office.ledger);
    assert_eq!(slow.next().await, None);
}

#[tokio::test]
async fn upkeep_ends_the_questions_of_leases_that_are_not_live() {
    let office = Office::new();
    let (ending, living) = (Sandbox::new("c1"), Sandbox::new("c2"));
    let ended = office.opened(&ending.call(1)).await;
    let open = office.opened(&living.call(1)).await;
    let wait = office.wait(ended).await;
    let leases = Arc::new(Mutex::new(None));
    let live = Arc::clone(&leases);
    let shutdown = CancellationToken::new();
    let live = Arc::new(move || live.lock().clone());
    let upkeep = tokio::spawn(Arc::clone(&office.ledger).run(live, shutdown.clone()));
    // While the registry cannot be read, nothing ends.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(office.waiting(ended).await, 1);
    *leases.lock() = Some(HashSet::from([living.lease]));
    assert_eq!(wait.await.unwrap(), ApprovalOutcome::Ended);
    let record = office.ledger.get(open).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    shutdown.cancel();
    upkeep.await.unwrap();
}

#[tokio::test]
async fn a_broken_file_denies_and_a_restored_one_has_every_decision() {
    let office = Office::new();
    let sandbox = Sandbox::new("c1");
    let denied = office.opened(&sandbox.call(1)).await;
    office.ledger.deny(denied, by("bob")).await.unwrap();
    let id = office.opened(&sandbox.call(2)).await;
    office.approve(id, None).await;
    let grant = office.grant_of(id).await;
    let file = office.directory.path().join(FILE_NAME);
    let aside = office.directory.path().join("aside");
    std::fs::rename(&file, &aside).unwrap();
    assert!(office.ledger.ask(sandbox.call(1), TTL).await.is_err());
    assert!(office.ledger.use_grant(grant, sandbox.lease).await.is_err());
    let decided = office.ledger.approve(id, None, by("ann")).await;
    assert!(matches!(decided, Err(Refused::Store(_))));
    assert!(office.ledger.wait(id).await.is_err());
    assert!(
        !file.exists(),
        "a missing file is not replaced by an empty one"
    );
    std::fs::rename(&aside, &file).unwrap();
    let answer = office.ask(&sandbox.call(1)).await;
    assert!(matches!(answer, ApprovalAnswer::Denied { .. }));
    assert!(office.ledger.use_grant(grant, sandbox.lease).await.unwrap());
}
