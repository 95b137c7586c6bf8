//! The wait for people's decisions about the questions of one container.

use std::collections::HashSet;
use std::sync::Arc;

use addons::contract::{ApprovalId, Container};
use tokio::sync::Semaphore;

use crate::approvals::{Filter, Ledger, News, Seen, State, StoreError};

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
    let open = open_questions(ledger, container).await?;
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
                let now = open_questions(ledger, container).await?;
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

/// The open questions of a lease.
async fn open_questions(
    ledger: &Ledger,
    container: &Container,
) -> Result<HashSet<ApprovalId>, StoreError> {
    let filter = Filter {
        state: Some(State::Pending),
        container: Some(container.id.clone()),
        ..Filter::default()
    };
    let records = ledger.list(filter).await?.into_iter();
    let own = records.filter(|record| record.topic.lease == container.lease);
    Ok(own.map(|record| record.id).collect())
}
