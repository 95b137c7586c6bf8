//! Those who watch, upkeep, and a ledger whose file is missing for a while.

use std::collections::HashSet;

use tokio_util::sync::CancellationToken;
use unified_proxy::approvals::Seen;
use unified_proxy::approvals::bounds::MAX_BEHIND;

use super::*;

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
    // The thread publishes a change after its reply, and before it answers the next caller.
    assert_eq!(office.waiting(id).await, 0);
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
