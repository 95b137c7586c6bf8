//! The ledger as addons see it.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, BoxFuture, GrantId, Learned,
    LeaseId, LiveGrant, Question, Unavailable,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::live::LiveGrants;
use super::store::StoreError;

/// Asks people through the ledger.
pub struct LedgerPort {
    pub ledger: Arc<Ledger>,
    pub grants: Arc<LiveGrants>,
    /// How long a question waits for a decision.
    pub ttl: Duration,
    /// Cancelled when the server begins to stop. Then nobody waits any more.
    pub stopping: CancellationToken,
}

impl LedgerPort {
    /// Waits until a grant for a time is in memory. One for one execution never is.
    async fn know(&self, id: GrantId, lease: LeaseId) -> Result<(), StoreError> {
        let is_known = self.grants.of(lease).iter().any(|grant| grant.id == id);
        match is_known {
            true => Ok(()),
            false => self.grants.refresh().await,
        }
    }
}

impl ApprovalLedger for LedgerPort {
    fn live(&self, lease: LeaseId) -> Arc<[LiveGrant]> {
        self.grants.of(lease)
    }

    fn learned(&self) -> Arc<Learned> {
        self.grants.learned()
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        Box::pin(async move {
            let lease = question.topic().lease;
            let answer = self.ledger.ask(question, self.ttl).await;
            let answer = answer.map_err(unavailable)?;
            if let ApprovalAnswer::Granted { grant, .. } = answer {
                self.know(grant, lease).await.map_err(unavailable)?;
            }
            Ok(answer)
        })
    }

    fn look_up(
        &self,
        question: Question,
    ) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>> {
        Box::pin(async move { self.ledger.look_up(question).await.map_err(unavailable) })
    }

    fn wait(
        &self,
        id: ApprovalId,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        Box::pin(async move {
            let waiting = timeout(limit, self.ledger.wait(id));
            let Some(Ok(outcome)) = self.stopping.run_until_cancelled(waiting).await else {
                return Ok(None);
            };
            let outcome = outcome.map_err(unavailable)?;
            // One for one execution is never in memory. It is returned at once, so that it is not
            // lost with a caller that goes away.
            if let ApprovalOutcome::Granted(id) = outcome
                && !self.ledger.is_promised(id)
            {
                self.grants.refresh().await.map_err(unavailable)?;
            }
            Ok(Some(outcome))
        })
    }

    fn release(&self, id: GrantId) {
        self.ledger.release(id);
    }

    fn use_grant(&self, id: GrantId, lease: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>> {
        Box::pin(async move { self.ledger.use_grant(id, lease).await.map_err(unavailable) })
    }
}

/// The ledger logs its errors.
fn unavailable(_: StoreError) -> Unavailable {
    Unavailable
}
