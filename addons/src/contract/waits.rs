//! Limits how many flows wait in the chain at once, of each lease and of all leases together, and
//! how long each flow waits.

use std::future::poll_fn;
use std::mem::replace;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::denial::Denial;
use super::facts::Lookup;
use super::flow::Flow;
use super::principal::LeaseHandle;

/// Limit on the flows in one chain that wait at the same time, for example for a token, for the
/// result of a look-up or for a person. Counts only flows of containers. Each waiting flow keeps
/// its connection open and its head in memory.
const MAX_WAITS: usize = 8192;

/// Limit on the flows of one lease that wait at once. As many more may ask a person at the same time;
/// they are not held for the decision.
const MAX_WAITS_PER_LEASE: usize = 256;

/// The `Retry-After` of a flow that is denied because too many flows wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The limits on waiting flows, of a lease or of a chain.
pub(super) struct Limits {
    waiting: Arc<Semaphore>,
    /// Of flows beyond the limit on waiting ones that ask a person, which takes until the question is
    /// on disk.
    asking: Arc<Semaphore>,
}

impl Limits {
    /// The limits of a chain.
    pub(super) fn of_all() -> Self {
        Self::of(MAX_WAITS)
    }

    fn of(most: usize) -> Self {
        let permits = || Arc::new(Semaphore::new(most));
        Self {
            waiting: permits(),
            asking: permits(),
        }
    }
}

struct LeaseWaits(Limits);

/// Whether a flow that asks a person may be held for the decision.
#[derive(Clone, Debug, Default)]
pub struct Room(Arc<AtomicBool>);

impl Room {
    /// Whether fewer flows wait than may wait at once. Pending once, since a flow counts as waiting
    /// from its first pending poll on.
    pub async fn is_left(&self) -> bool {
        let mut has_waited = false;
        poll_fn(|context| match replace(&mut has_waited, true) {
            true => Poll::Ready(()),
            false => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
        !self.0.load(Ordering::Relaxed)
    }
}

/// The two limits that a waiting flow counts against: the lease's limit and the chain's limit.
pub(super) struct Waits<'c> {
    /// `None` for a flow without limits: a look-up, or a flow without a known container.
    lease: Option<Arc<LeaseHandle>>,
    all: &'c Limits,
}

/// The error of a flow that would have to wait although a limit on waiting flows is reached.
pub(super) struct Full;

impl<'c> Waits<'c> {
    /// The limits of a flow. A look-up has none, since the request that it belongs to is counted
    /// itself.
    pub(super) fn of(flow: &Flow, all: &'c Limits) -> Self {
        let lease = match &flow.principal {
            Some(principal) if flow.find_slot::<Lookup>().is_none() => principal.lease().cloned(),
            _ => None,
        };
        Self { lease, all }
    }

    /// Awaits a future. If its first poll is pending, the flow counts as waiting from then on, or
    /// fails with [`Full`] if a limit is reached. A future that asks a person has a [`Room`]: beyond
    /// the limit, it learns that there is none.
    pub(super) async fn hold<F: Future>(
        &self,
        future: F,
        room: Option<&Room>,
    ) -> Result<F::Output, Full> {
        let mut future = pin!(future);
        let mut held = None;
        poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            if polled.is_pending() && held.is_none() {
                match self.take(room) {
                    Ok(permits) => held = Some(permits),
                    Err(full) => return Err(full).into(),
                }
            }
            polled.map(Ok)
        })
        .await
    }

    fn take(&self, room: Option<&Room>) -> Result<Option<[OwnedSemaphorePermit; 2]>, Full> {
        let Some(lease) = &self.lease else {
            return Ok(None);
        };
        let own = lease.state_or_init(|| LeaseWaits(Limits::of(MAX_WAITS_PER_LEASE)));
        let (own, all) = (&own.0, self.all);
        match (room, permits(&own.waiting, &all.waiting)) {
            (Some(room), Err(Full)) => {
                room.0.store(true, Ordering::Relaxed);
                permits(&own.asking, &all.asking).map(Some)
            }
            (_, taken) => taken.map(Some),
        }
    }
}

fn permits(own: &Arc<Semaphore>, all: &Arc<Semaphore>) -> Result<[OwnedSemaphorePermit; 2], Full> {
    let take = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().map_err(|_| Full);
    Ok([take(own)?, take(all)?])
}

impl Full {
    /// The denial of the flow that would have to wait.
    pub(super) fn denial(self, flow: &Flow) -> Denial {
        flow.rate_limited(RETRY_AFTER).rule("waiting flows")
    }
}

/// Awaits the result of a hook or a judge. Denies if the future panics or is not ready by `until`.
pub(super) async fn settle<T>(
    future: impl Future<Output = Result<T, Denial>>,
    until: Instant,
) -> Result<T, Denial> {
    match timeout_at(until, AssertUnwindSafe(future).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_panic)) => Err(Denial::panicked()),
        Err(_elapsed) => Err(Denial::internal().rule("deadline")),
    }
}
