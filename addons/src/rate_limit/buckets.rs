//! Token buckets of requests, owned by the leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::requests::Rate;
use crate::contract::{Container, ContainerId, Flow};

/// A bucket is kept for this long after its last request, or until it is full again if that is
/// later.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// Weak references to the buckets of every lease, to free idle buckets and to collect the metric.
/// The leases own the buckets.
#[derive(Clone)]
pub struct RateBuckets {
    leases: Arc<Mutex<Vec<Weak<Buckets>>>>,
    tokens: IntGaugeVec,
}

impl RateBuckets {
    /// Registers `proxy_rate_limit_bucket_tokens`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_rate_limit_bucket_tokens",
            "Tokens left in the container's rate-limit bucket at its last request, by allowlist entry or MCP server",
        );
        let buckets = Self {
            leases: Arc::default(),
            tokens: IntGaugeVec::new(opts, &["container", "upstream"])?,
        };
        registry.register(Box::new(buckets.clone()))?;
        Ok(buckets)
    }

    /// Frees buckets that had no request for five minutes and are full again.
    pub fn free_idle(&self, now: Instant) {
        for lease in live(&mut self.leases.lock()) {
            lease.free_idle(now);
        }
    }

    /// Counts a request. If the bucket is empty, the error is the time to wait.
    pub(super) fn count(
        &self,
        container: &Container,
        flow: &Flow,
        bucket: &str,
        rate: Rate,
    ) -> Result<(), Duration> {
        let lease = container.state_or_init(|| {
            let lease = Arc::new(Buckets::new(container));
            self.leases.lock().push(Arc::downgrade(&lease));
            lease
        });
        lease.take(flow, bucket, rate)
    }
}

/// Returns the buckets of leases that have not ended, and removes the others from the list.
fn live(leases: &mut Vec<Weak<Buckets>>) -> Vec<Arc<Buckets>> {
    let live: Vec<_> = leases
        .iter()
        .filter_map(Weak::upgrade)
        .filter(|lease| !lease.ended.is_cancelled())
        .collect();
    *leases = live.iter().map(Arc::downgrade).collect();
    live
}

impl Collector for RateBuckets {
    fn desc(&self) -> Vec<&Desc> {
        self.tokens.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Locked until the end, so that a concurrent scrape cannot reset the gauges in between.
        let mut leases = self.leases.lock();
        self.tokens.reset();
        for lease in live(&mut leases) {
            let container = lease.container.as_str();
            for (upstream, tokens) in lease.tokens() {
                let gauge = self.tokens.with_label_values(&[container, &*upstream]);
                gauge.set(tokens.into());
            }
        }
        self.tokens.collect()
    }
}

/// The buckets of one lease. Owned by the lease and freed with it.
struct Buckets {
    container: ContainerId,
    ended: CancellationToken,
    began: Instant,
    /// Replaced as a whole when a bucket is added or freed, so that requests look up without a
    /// lock.
    buckets: ArcSwap<ByName>,
}

/// Buckets by name. The names come from the configuration, so no client can choose names whose fast
/// hashes collide.
type ByName = HashMap<Arc<str>, Arc<Bucket>, RandomState>;

struct Bucket {
    rate: Rate,
    /// The label of the metric: [`crate::contract::FlowStart::upstream_label`].
    upstream: Box<str>,
    limiter: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
    /// Tokens left at the last request.
    tokens: AtomicU32,
    /// Time of the last request, in milliseconds since the lease's first request.
    last: AtomicU64,
}

impl Buckets {
    fn new(container: &Container) -> Self {
        Self {
            container: container.id.clone(),
            ended: container.ended().clone(),
            began: Instant::now(),
            buckets: ArcSwap::default(),
        }
    }

    fn take(&self, flow: &Flow, name: &str, rate: Rate) -> Result<(), Duration> {
        let at = self.millis(flow.started);
        match self.buckets.load().get(name) {
            Some(bucket) if bucket.rate == rate => bucket.take(at),
            _ => self
                .add(name, Bucket::new(rate, flow.upstream_label()))
                .take(at),
        }
    }

    /// Adds a bucket that is new, or whose rate a reload changed. If several threads add a bucket
    /// of the same name and rate at once, all of them get the one that was added first.
    fn add(&self, name: &str, bucket: Bucket) -> Arc<Bucket> {
        let bucket = Arc::new(bucket);
        let mut present = Arc::clone(&bucket);
        self.buckets.rcu(|buckets| {
            let before = buckets.get(name).filter(|one| one.rate == bucket.rate);
            present = Arc::clone(before.unwrap_or(&bucket));
            if before.is_some() {
                return Arc::clone(buckets);
            }
            let mut buckets = ByName::clone(buckets);
            buckets.insert(name.into(), Arc::clone(&bucket));
            Arc::new(buckets)
        });
        present
    }

    /// Frees idle buckets. A bucket that is not full again stays, since a new bucket would be full.
    /// A thread that looked up a bucket just before it is freed may still take one token from it.
    fn free_idle(&self, now: Instant) {
        let now = self.millis(now);
        let stays = |bucket: &Bucket| {
            let idle = now.saturating_sub(bucket.last.load(Ordering::Relaxed));
            Duration::from_millis(idle) < IDLE.max(bucket.rate.refill())
        };
        if self.buckets.load().values().all(|bucket| stays(bucket)) {
            return;
        }
        self.buckets.rcu(|buckets| {
            let mut buckets = ByName::clone(buckets);
            buckets.retain(|_, bucket| stays(bucket));
            buckets
        });
    }

    /// The tokens of each upstream: the lowest number in any of the upstream's buckets. An upstream
    /// has several buckets if hosts that match its entry have their own limits.
    fn tokens(&self) -> HashMap<Box<str>, u32> {
        let mut lowest = HashMap::new();
        for bucket in self.buckets.load().values() {
            let tokens = bucket.tokens.load(Ordering::Relaxed);
            let least = lowest.entry(bucket.upstream.clone()).or_insert(tokens);
            *least = tokens.min(*least);
        }
        lowest
    }

    fn millis(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
    }
}

impl Bucket {
    fn new(rate: Rate, upstream: &str) -> Self {
        let quota = Quota::per_second(rate.per_second).allow_burst(rate.burst);
        Self {
            rate,
            upstream: upstream.into(),
            limiter: RateLimiter::direct(quota).with_middleware(),
            tokens: AtomicU32::new(rate.burst.get()),
            last: AtomicU64::new(0),
        }
    }

    fn take(&self, at: u64) -> Result<(), Duration> {
        // Under load, most requests are in the same millisecond as the one before and skip the
        // write.
        if self.last.load(Ordering::Relaxed) < at {
            self.last.fetch_max(at, Ordering::Relaxed);
        }
        let taken = self.limiter.check();
        let left = taken
            .as_ref()
            .map_or(0, |state| state.remaining_burst_capacity());
        self.tokens.store(left, Ordering::Relaxed);
        match taken {
            Ok(_) => Ok(()),
            Err(not_until) => Err(not_until.wait_time_from(DefaultClock::default().now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;
    use crate::contract::Kind;
    use crate::fixtures::{container, flow_of};

    #[test]
    fn threads_that_create_a_bucket_at_the_same_time_get_one_burst_in_total() {
        const BURST: usize = 5;
        let [per_second, burst] = [1, BURST as u32].map(|n| NonZeroU32::new(n).unwrap());
        let rate = Rate { per_second, burst };
        let buckets = RateBuckets::new(&Registry::new()).unwrap();
        let web = container("web");
        let flow = flow_of(&web, Kind::Http, "api.example.com");
        let taken: [AtomicUsize; 100] = std::array::from_fn(|_| AtomicUsize::new(0));
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (number, taken) in taken.iter().enumerate() {
                        start.wait();
                        let name = number.to_string();
                        let got =
                            (0..BURST).filter(|_| buckets.count(&web, &flow, &name, rate).is_ok());
                        taken.fetch_add(got.count(), Ordering::Relaxed);
                    }
                });
            }
        });
        for taken in taken {
            // The test may take a second, which adds a token.
            assert!((BURST..=BURST + 1).contains(&taken.into_inner()));
        }
        assert_eq!(buckets.leases.lock().len(), 1);
    }
}
