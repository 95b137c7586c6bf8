//! How many flows of one lease may wait in the chain.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::denial::{Code, Denial};
use super::principal::Principal;

/// Flows of one lease that may wait at once, for a token or a person. Each holds its connection,
/// its head and its place at the upstream's breaker.
const MAX_WAITS_PER_LEASE: usize = 256;

/// When it is worth asking again where there are too many.
const RETRY_AFTER: Duration = Duration::from_secs(1);

struct LeaseWaits(Arc<Semaphore>);

/// A flow that waits, until this is dropped.
pub(super) struct Wait {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Wait {
    /// Counts a wait of the principal; the appliance's own flows are few and bounded elsewhere.
    pub(super) fn begin(principal: Option<&Principal>) -> Result<Self, Denial> {
        let Some(Principal::Container(container)) = principal else {
            return Ok(Self { _permit: None });
        };
        let waits =
            container.state_or_init(|| LeaseWaits(Arc::new(Semaphore::new(MAX_WAITS_PER_LEASE))));
        match Arc::clone(&waits.0).try_acquire_owned() {
            Ok(permit) => Ok(Self {
                _permit: Some(permit),
            }),
            Err(_full) => Err(Denial::new(Code::RateLimited, "Rate limit exceeded")
                .with("container_id", container.id.as_str())
                .with("upstream", "waiting")
                .rule("waiting flows of one container")
                .retry_after(RETRY_AFTER)),
        }
    }
}
