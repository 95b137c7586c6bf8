//! The wait for people's decisions about the questions of one container.

use std::sync::Arc;

use addons::contract::Container;
use tokio::sync::Semaphore;

use crate::approvals::{Ledger, News, Seen, StoreError};

/// The most calls of one container that wait at once. An agent has one turn.
const MAX_WAITS: usize = 8;

/// Has [`MAX_WAITS`] permits, for one lease.
struct TurnWaits(Arc<Semaphore>);

/// The permit of a call to wait; `None` if too many calls of the container wait.
pub(super) fn permit(container: &Container) -> Option<tokio::sync::OwnedSemaphorePermit> {
    let waits = container.state_or_init(|| TurnWaits(Arc::new(Semaphore::new(MAX_WAITS))));
    Arc::clone(&waits.0).try_acquire_owned().ok()
}

/// Waits until a question of the lease that is open now is decided or over; returns at once if none
/// is. Follows the changes of the ledger, so it takes no approval that another call waits for.
/// Cancel safe.
pub(super) async fn next_decision(
    ledger: &Ledger,
    container: &Container,
) -> Result<(), StoreError> {
    // Subscribed before the questions are listed, so that no decision in between is missed.
    let mut changes = ledger.watch();
    let open = ledger.pending(container).await?;
    if open.is_empty() {
        return Ok(());
    }
    loop {
        match changes.next().await {
            Some(Seen::Changed(change)) => {
                let is_ours = change.approval.is_some_and(|id| open.contains(&id));
                if is_ours && is_over(&change.news) {
                    return Ok(());
                }
            }
            Some(Seen::Behind) => {
                let now = ledger.pending(container).await?;
                if open.iter().any(|id| !now.contains(id)) {
                    return Ok(());
                }
            }
            None => return Ok(()),
        }
    }
}

fn is_over(news: &News) -> bool {
    match news {
        News::Approved { .. } | News::Denied(_) | News::Expired | News::Ended => true,
        News::Opened | News::Forgotten | News::Used(_) | News::Granted(_) | News::GrantEnded(_) => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use addons::contract::{
        ApprovalAnswer, ApprovalId, AuthMode, ContainerId, LeaseId, Level, Question, QuestionKind,
        Registration, Source, Standing, Topic,
    };
    use futures_util::FutureExt;
    use time::OffsetDateTime;

    use super::*;
    use crate::approvals::Decision;
    use crate::approvals::sqlite::SqliteApprovals;

    fn container(id: &str) -> Container {
        let now = OffsetDateTime::now_utc();
        let id = ContainerId::parse(id).unwrap();
        Container::new(Registration {
            source: Source::Listener(id.clone()),
            id,
            lease: LeaseId::generate(),
            repos: Vec::new(),
            auth_mode: AuthMode::User,
            created_at: now,
            expires_at: now + time::Duration::HOUR,
            allowed_domains: None,
            standing: Standing::default(),
        })
    }

    async fn ask(ledger: &Ledger, container: &Container, subject: &str) -> ApprovalId {
        let topic = Topic {
            lease: container.lease,
            container: container.id.clone(),
            kind: QuestionKind::Host,
            server: None,
            subject: subject.into(),
            rule: None,
            reason: None,
            level: Level::Public,
            revision: "ask".into(),
        };
        let question = Question::new(topic, None).unwrap();
        let asked = ledger.ask(question, Duration::from_secs(3600)).await;
        match asked.unwrap() {
            ApprovalAnswer::Open(id) => id,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_turn_begins_with_a_decision_about_a_question_of_the_own_lease() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteApprovals::new(directory.path().join("approvals.db"));
        let ledger = Ledger::open(store, Arc::new(OffsetDateTime::now_utc)).unwrap();
        let (own, other, before) = (container("own"), container("other"), container("own"));
        let deny = async |id| {
            let by = "ann".to_owned();
            let decision = Decision { by, comment: None };
            ledger.deny(id, decision).await.unwrap()
        };
        // Nothing is open.
        next_decision(&ledger, &own).await.unwrap();
        let first = ask(&ledger, &own, "a.example.com:443").await;
        let foreign = ask(&ledger, &other, "a.example.com:443").await;
        let old = ask(&ledger, &before, "a.example.com:443").await;
        let mut waiting = pin!(next_decision(&ledger, &own));
        assert!(waiting.as_mut().now_or_never().is_none());
        // The ledger answers in the order of the calls: `waiting` has its list when this is done.
        deny(foreign).await;
        assert!(waiting.as_mut().now_or_never().is_none());
        deny(old).await;
        // A question that was opened later.
        let second = ask(&ledger, &own, "b.example.com:443").await;
        deny(second).await;
        assert!(waiting.as_mut().now_or_never().is_none());
        deny(first).await;
        waiting.await.unwrap();
        next_decision(&ledger, &own).await.unwrap();
    }

    #[test]
    fn a_container_has_a_limit_of_calls_that_wait() {
        let container = container("own");
        let permits: Vec<_> = (0..MAX_WAITS).map(|_| permit(&container)).collect();
        assert!(permits.iter().all(Option::is_some));
        assert!(permit(&container).is_none());
        drop(permits);
        assert!(permit(&container).is_some());
    }
}
