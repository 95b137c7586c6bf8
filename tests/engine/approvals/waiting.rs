//! Callers that wait, and operators that decide at the same time.

use std::collections::HashSet;

use testkit::each_row_async;
use unified_proxy::approvals::bounds::{MAX_PENDING_PER_CONTAINER, PROMISED_FOR, RATE_WINDOW};

use super::*;

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
async fn a_question_about_a_definition_replaces_those_about_other_definitions_of_the_tool() {
    let office = Office::new();
    let [sandbox, other] = ["c1", "c2"].map(Sandbox::new);
    let about = |sandbox: &Sandbox, kind, tool, revision: String| {
        let topic = sandbox.topic(kind, tool);
        let revision = revision.into();
        Question::new(Topic { revision, ..topic }, None).unwrap()
    };
    let definition = |number: usize| {
        let revision = format!("d{number}");
        about(&sandbox, QuestionKind::Definition, "delete", revision)
    };
    let kept = [
        about(&other, QuestionKind::Definition, "delete", "d0".to_owned()),
        about(&sandbox, QuestionKind::Definition, "read", "d0".to_owned()),
        about(&sandbox, QuestionKind::Tool, "delete", "d0".to_owned()),
    ];
    let mut open = Vec::new();
    for question in &kept {
        open.push(office.opened(question).await);
    }
    let first = office.opened(&definition(0)).await;
    assert_eq!(office.opened(&definition(0)).await, first);
    let mut newest = first;
    for number in 1..=MAX_PENDING_PER_CONTAINER {
        // Within the rate of new questions.
        office.pass(RATE_WINDOW / 15);
        newest = office.opened(&definition(number)).await;
    }
    open.push(newest);
    for id in open {
        let record = office.ledger.get(id).await.unwrap().unwrap();
        assert_eq!(record.state, State::Pending, "{id}");
    }
    let outcome = office.ledger.wait(first).await.unwrap();
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
    let first = waits.remove(0).await.unwrap();
    assert_eq!(first, ApprovalOutcome::Granted(grant));
    // Until it is used, no caller that comes later gets it.
    assert_eq!(office.ask(&sandbox.call(1)).await, ApprovalAnswer::Used);
    waits.push(office.wait(id).await);
    assert_eq!(office.waiting(id).await, waits.len());
    assert!(office.ledger.use_grant(grant, sandbox.lease).await.unwrap());
    // A used grant is not given back.
    office.ledger.release(grant);
    for wait in waits {
        assert_eq!(wait.await.unwrap(), ApprovalOutcome::Used);
    }
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
    let granted = ApprovalAnswer::Granted {
        grant,
        approval: Some(id),
    };
    assert_eq!(answer, granted);
}

#[tokio::test]
async fn an_approval_that_is_given_back_or_not_used_in_time_is_for_the_next_caller_that_waits() {
    for is_given_back in [true, false] {
        let office = Office::new();
        let sandbox = Sandbox::new("c1");
        let id = office.opened(&sandbox.call(1)).await;
        let (first, next) = (office.wait(id).await, office.wait(id).await);
        office.approve(id, None).await;
        let grant = office.grant_of(id).await;
        assert_eq!(first.await.unwrap(), ApprovalOutcome::Granted(grant));
        match is_given_back {
            true => office.ledger.release(grant),
            false => {
                office.pass(PROMISED_FOR);
                // It is offered to the one that waits before others are asked.
                assert_eq!(office.ask(&sandbox.call(1)).await, ApprovalAnswer::Used);
            }
        }
        assert_eq!(next.await.unwrap(), ApprovalOutcome::Granted(grant));
    }
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
            let granted = ApprovalAnswer::Granted {
                grant,
                approval: Some(id),
            };
            assert_eq!(answer, granted);
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
        let [record]: [Record; 1] = decided.try_into().unwrap();
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
        poll_fn(|context| Poll::Ready(deny.as_mut().poll(context).is_ready())).await;
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
