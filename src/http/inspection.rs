//! Memory and threads for buffered bodies, shared by all connections.
//!
//! Memory is reserved before it is allocated and released when the bytes are sent or dropped. A
//! container gets at most a quarter of the memory. The last quarter is reserved for containers that
//! hold up to 1 MiB, so that a small request is served even while three containers fill their
//! quarters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, Code, Container, Denial, InspectionBudget, Verdict};
use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::runtime::threads;

/// Bytes charged for every buffered body besides its length. They account for the connection's
/// buffers and bound the number of bodies.
const BODY_OVERHEAD: usize = 8 * 1024;

/// A container may use the last quarter of the memory as long as it holds at most this many bytes.
const SMALL_HOLDER: usize = 1024 * 1024;

/// The `Retry-After` of a denial for lack of memory or threads. It is short, since bodies are
/// judged and sent within moments.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest time that a body waits, in total, for other bodies of its container and then for a
/// thread. It is less than the deadline of a judge: a missed deadline is an internal error without
/// `Retry-After`.
const TURN: Duration = Duration::from_secs(5);

/// The label values of `proxy_inspection_rejected_total`.
const REASONS: [&str; 4] = ["memory", "timeout", "bytes", "values"];

/// The memory, threads and metrics that all buffered bodies share.
pub struct Inspection {
    /// Bytes reserved by all containers together.
    reserved: Mutex<usize>,
    /// Permits for computations, one for every two CPUs (at least one), so that connections are
    /// still served.
    threads: Arc<Semaphore>,
    memory: IntGauge,
    rejected: IntCounterVec,
}

/// One lease's share of the memory and of the threads.
#[derive(Default)]
struct Share {
    /// Bytes reserved. Changed only under the lock of [`Inspection::reserved`].
    reserved: AtomicUsize,
    /// Locked while a body of the container is judged on a thread. The container's next body waits
    /// here before it waits for a thread, so that many bodies of one container do not displace
    /// bodies of other containers.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Inspection {
    /// Registers `proxy_inspection_memory_bytes` and `proxy_inspection_rejected_total`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Memory reserved for buffered bodies, in bytes.";
        let memory = IntGauge::new("proxy_inspection_memory_bytes", help)?;
        let help = "Buffered bodies that were over a limit, by reason.";
        let rejected = Opts::new("proxy_inspection_rejected_total", help);
        let rejected = IntCounterVec::new(rejected, &["reason"])?;
        for reason in REASONS {
            rejected.with_label_values(&[reason]);
        }
        registry.register(Box::new(memory.clone()))?;
        registry.register(Box::new(rejected.clone()))?;
        Ok(Self {
            reserved: Mutex::new(0),
            threads: Arc::new(Semaphore::new((threads() / 2).max(1))),
            memory,
            rejected,
        })
    }

    /// Counts a denial whose cause is a limit on buffered bodies; ignores others.
    pub fn count(&self, denial: &Denial) {
        let reason = match denial.code() {
            Code::InspectionBusy => "memory",
            Code::BodyTimeout => "timeout",
            Code::BodyTooLargeToInspect if denial.detail("limit") == Some("inspect_values") => {
                "values"
            }
            Code::BodyTooLargeToInspect => "bytes",
            _ => return,
        };
        self.rejected.with_label_values(&[reason]).inc();
    }

    /// Counts a response's body that was not complete within `limits.inspect_timeout`.
    pub fn count_timeout(&self) {
        self.rejected.with_label_values(&["timeout"]).inc();
    }

    /// Reserves the first 8 KiB for a body of a container. Denies as [`Reservation::grow`] does.
    /// `limit` is `limits.inspect_memory` in bytes.
    pub fn begin(
        self: &Arc<Self>,
        container: &Container,
        limit: usize,
    ) -> Result<Arc<Reservation>, Denial> {
        let reservation = Reservation {
            inspection: Arc::clone(self),
            share: Arc::clone(container.state_or_init(Arc::<Share>::default)),
            limit,
            reserved: AtomicUsize::new(0),
        };
        reservation.grow(BODY_OVERHEAD)?;
        Ok(Arc::new(reservation))
    }
}

/// The memory reserved for one body, released when this is dropped.
pub struct Reservation {
    inspection: Arc<Inspection>,
    share: Arc<Share>,
    limit: usize,
    reserved: AtomicUsize,
}

impl Reservation {
    /// Reserves `bytes` more bytes. Denies if the container would then hold more than a quarter of
    /// the memory, or if all containers together would hold more than all of it. A container that
    /// would hold more than 1 MiB is denied as soon as all together would hold more than three
    /// quarters.
    pub fn grow(&self, bytes: usize) -> Verdict {
        self.grow_within(bytes, self.limit / 4)
    }

    /// Reserves as [`Self::grow`] does, for bytes that can be dropped, such as a queued MCP event.
    /// Denies if the container would then hold more than half of its quarter: the other half is left
    /// to bodies that cannot be dropped. Counts a denial.
    pub fn grow_droppable(&self, bytes: usize) -> Verdict {
        let grown = self.grow_within(bytes, self.limit / 8);
        grown.inspect_err(|denial| self.inspection.count(denial))
    }

    fn grow_within(&self, bytes: usize, most: usize) -> Verdict {
        let quarter = self.limit / 4;
        let mut all = self.inspection.reserved.lock();
        let own = self.share.reserved.load(Ordering::Relaxed);
        let (all_after, own_after) = (all.saturating_add(bytes), own.saturating_add(bytes));
        let all_most = match own_after <= SMALL_HOLDER.min(quarter) {
            true => self.limit,
            false => self.limit - quarter,
        };
        if own_after > most || all_after > all_most {
            return Err(busy());
        }
        *all = all_after;
        self.share.reserved.store(own_after, Ordering::Relaxed);
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.inspection.memory.set(all_after as i64);
        Ok(())
    }

    /// Releases what a body of `bytes` bytes does not need.
    pub fn fit(&self, bytes: usize) {
        self.shrink_to(BODY_OVERHEAD.saturating_add(bytes));
    }

    /// Releases all but `bytes` bytes.
    fn shrink_to(&self, bytes: usize) {
        let mut all = self.inspection.reserved.lock();
        let reserved = self.reserved.load(Ordering::Relaxed);
        let returned = reserved.saturating_sub(bytes);
        *all -= returned;
        self.share.reserved.fetch_sub(returned, Ordering::Relaxed);
        self.reserved.fetch_sub(returned, Ordering::Relaxed);
        self.inspection.memory.set(*all as i64);
    }

    /// Attaches the reservation to the bytes: their length stays reserved until the last reference
    /// to them is dropped. Releases the rest of the reservation now.
    pub fn keep(self: Arc<Self>, bytes: Bytes) -> Bytes {
        self.shrink_to(bytes.len());
        self.hold(bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Bytes with their reservation.
struct Kept {
    bytes: Bytes,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl InspectionBudget for Reservation {
    fn reserve(&self, bytes: usize) -> Verdict {
        self.grow(bytes)
    }

    fn hold(self: Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept {
            bytes,
            _reservation: self,
        })
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, Verdict> {
        let turn = Arc::clone(&self.share.turn);
        let threads = Arc::clone(&self.inspection.threads);
        // The semaphore is never closed.
        let places = async { (turn.lock_owned().await, threads.acquire_owned().await) };
        Box::pin(async move {
            let places = timeout(TURN, places).await.map_err(|_| busy())?;
            let running = tokio::task::spawn_blocking(move || {
                // Moved into the work, which may outlast the request that waits for it.
                let _places = places;
                work();
            });
            // A panic is not reported here: the caller notices that `work` left no result.
            let _ = running.await;
            Ok(())
        })
    }
}

fn busy() -> Denial {
    let sentence = "Too many request bodies are being inspected: try again";
    Denial::new(Code::InspectionBusy, sentence)
        .retry_after(RETRY_AFTER)
        .rule("limits.inspect_memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::unregistered_container;

    const MB: usize = 1024 * 1024;
    const LIMIT: usize = 16 * MB;

    fn inspection() -> Arc<Inspection> {
        Arc::new(Inspection::new(&Registry::new()).unwrap())
    }

    fn container() -> Container {
        unregistered_container().unwrap()
    }

    /// Reserves bodies of 1 MiB each until one is denied.
    fn fill(inspection: &Arc<Inspection>, container: &Container) -> Vec<Arc<Reservation>> {
        let body = || {
            let body = inspection.begin(container, LIMIT).ok()?;
            body.grow(MB - BODY_OVERHEAD).ok().map(|()| body)
        };
        std::iter::from_fn(body).take(100).collect()
    }

    #[test]
    fn a_container_gets_a_quarter_and_the_last_quarter_is_for_small_holders() {
        let inspection = inspection();
        let containers = [(); 5].map(|()| container());
        let held: Vec<_> = containers
            .each_ref()
            .map(|one| fill(&inspection, one))
            .into();
        // Three containers fill their quarters. The other two get 1 MiB each of the last quarter.
        assert_eq!(
            held.iter().map(Vec::len).collect::<Vec<_>>(),
            [4, 4, 4, 1, 1]
        );
        let denial = inspection.begin(&containers[0], LIMIT).err().unwrap();
        assert_eq!(denial.code(), Code::InspectionBusy);
        assert_eq!(denial.retry_after_seconds(), Some(1));
        assert_eq!(inspection.memory.get() as usize, 14 * MB);
        drop(held);
        assert_eq!(inspection.memory.get(), 0);
        assert_eq!(fill(&inspection, &containers[4]).len(), 4);
    }

    #[test]
    fn bytes_that_can_be_dropped_get_half_of_a_quarter() {
        let inspection = inspection();
        let container = container();
        let messages = inspection.begin(&container, LIMIT).unwrap();
        messages.grow_droppable(2 * MB - BODY_OVERHEAD).unwrap();
        assert!(messages.grow_droppable(1).is_err());
        let rejected = inspection.rejected.with_label_values(&["memory"]);
        assert_eq!(rejected.get(), 1);
        assert_eq!(fill(&inspection, &container).len(), 2);
        let other = inspection.begin(&self::container(), LIMIT).unwrap();
        other.grow_droppable(2 * MB - BODY_OVERHEAD).unwrap();
    }

    #[test]
    fn many_small_bodies_are_bounded_by_their_overhead() {
        let inspection = inspection();
        let container = container();
        let begin = || inspection.begin(&container, LIMIT).ok();
        let bodies: Vec<_> = std::iter::from_fn(begin).collect();
        assert_eq!(bodies.len(), 4 * MB / BODY_OVERHEAD);
    }

    #[test]
    fn bytes_hold_their_reservation_until_the_last_reference_is_gone() {
        let inspection = inspection();
        let body = inspection.begin(&container(), LIMIT).unwrap();
        body.grow(MB).unwrap();
        let kept = body.keep(Bytes::from_static(b"judged"));
        assert_eq!(inspection.memory.get(), 6);
        let part = kept.slice(2..4);
        drop(kept);
        assert_eq!(inspection.memory.get(), 6);
        drop(part);
        assert_eq!(inspection.memory.get(), 0);
    }

    #[tokio::test]
    async fn a_container_computes_one_body_at_a_time_and_does_not_delay_other_containers() {
        let inspection = inspection();
        let (greedy, other) = (container(), container());
        let running = Arc::new(AtomicUsize::new(0));
        let queue = (0..20).map(|_| {
            let body = inspection.begin(&greedy, LIMIT).unwrap();
            let running = Arc::clone(&running);
            let work = move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::sleep(Duration::from_millis(20));
                running.fetch_sub(1, Ordering::SeqCst);
            };
            tokio::spawn(body.run(Box::new(work)))
        });
        let queue: Vec<_> = queue.collect();
        tokio::task::yield_now().await;
        let begun = std::time::Instant::now();
        let body = inspection.begin(&other, LIMIT).unwrap();
        body.run(Box::new(|| ())).await.unwrap();
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_millis(200),
            "waited {waited:?}; the greedy container's queue takes 400 ms"
        );
        for body in queue {
            body.await.unwrap().unwrap();
        }
    }
}
