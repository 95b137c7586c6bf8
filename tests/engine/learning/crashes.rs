//! Processes that are killed while they approve a host for every container, or take that back.

use std::fs;

use addons::contract::ApprovalId;
use testkit::each_row_async;
use unified_proxy::approvals::{Scope, State};
use unified_proxy::config::LearnedFile;

use super::{Fixture, by};

/// What a process did before it was killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    BeforeWriting,
    BeforeRenaming,
    BeforeRecording,
    AfterRecording,
    /// The question was denied, ended or approved otherwise, and the entry was not taken out yet.
    BeforeTakingOut(Closed),
    /// The entry was taken out by `revoke`.
    BeforeEndingTheRecord,
}

#[derive(Clone, Copy, Debug)]
enum Closed {
    Denied,
    Ended,
    ApprovedForTheLease,
}

/// Leaves a fixture's directory as a process that is killed at this step of an approval does.
async fn until(killed: Killed, fixture: &Fixture, id: ApprovalId) {
    let written = |text: &str| fs::write(fixture.path(), text).unwrap();
    // What an approval writes.
    let scratch = Fixture::new().await;
    let other = scratch.asked(443).await;
    scratch.approve(other, by("ann")).await.unwrap();
    let text = scratch.text().unwrap();
    let text = text.replace(&other.to_string(), &id.to_string());
    match killed {
        Killed::BeforeWriting => {}
        Killed::BeforeRenaming => {
            let temporary = fixture.directory.path().join(".tmpAb1Cd2");
            fs::write(temporary, text).unwrap();
        }
        Killed::BeforeRecording => written(&text),
        Killed::AfterRecording => {
            fixture.approve(id, by("ann")).await.unwrap();
        }
        Killed::BeforeTakingOut(closed) => {
            written(&text);
            let lease = Some(Scope::Lease);
            match closed {
                Closed::Denied => drop(fixture.ledger.deny(id, by("bob")).await.unwrap()),
                Closed::Ended => fixture.ledger.end_leases(|_| false).await.unwrap(),
                Closed::ApprovedForTheLease => {
                    drop(fixture.ledger.approve(id, lease, by("bob")).await.unwrap());
                }
            }
        }
        Killed::BeforeEndingTheRecord => {
            fixture.approve(id, by("ann")).await.unwrap();
            written("version: 1\ndomains: []\n");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_at_any_step_what_is_in_force_was_decided_and_no_decision_is_lost() {
    use Closed::*;
    use Killed::*;
    each_row_async(
        [
            (BeforeWriting, State::Pending, false),
            (BeforeRenaming, State::Pending, false),
            (BeforeRecording, State::Approved, true),
            (AfterRecording, State::Approved, true),
            (BeforeTakingOut(Denied), State::Denied, false),
            (BeforeTakingOut(Ended), State::Ended, false),
            (BeforeTakingOut(ApprovedForTheLease), State::Approved, false),
            (BeforeEndingTheRecord, State::Approved, false),
        ],
        async |(killed, state, in_force)| {
            let fixture = Fixture::new().await;
            let id = fixture.asked(443).await;
            until(killed, &fixture, id).await;
            let mut fixture = fixture.restart().await;
            // A second start finds nothing to do.
            for _ in 0..2 {
                assert_eq!(fixture.state(id).await, state, "{killed:?}");
                assert_eq!(!fixture.ports().is_empty(), in_force, "{killed:?}");
                let learned = LearnedFile::of(fixture.directory.path()).read().unwrap();
                assert_eq!(learned.len(), usize::from(in_force), "{killed:?}");
                fixture = fixture.restart().await;
            }
            let record = fixture.ledger.get(id).await.unwrap().unwrap();
            let grants = fixture.ledger.grants().await.unwrap();
            let always = grants.iter().any(|grant| grant.scope == Scope::Always);
            assert_eq!(always, in_force, "{killed:?}: {grants:?}");
            if in_force {
                assert_eq!(record.decision.unwrap().by, "ann", "{killed:?}");
            }
        },
    )
    .await;
}
