//! The buckets that requests draw from, which belong to the leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::{Mutex, RwLock};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::requests::Rate;
use crate::contract::{Container, ContainerId, Flow};

/// How long a bucket outlives the last request to its upstream.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// The buckets of every lease. The leases own them; this one only knows where they are, to free
/// those that nobody uses and to tell how full they are.
#[derive(Clone)]
pub struct RateBuckets {
    leases: Arc<Mutex<Vec<Weak<Buckets>>>>,
    tokens: IntGaugeVec,
}

impl RateBuckets {
    /// Registers the metric.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_rate_limit_bucket_tokens",
            "Requests that a container may send at once, as of its last one, by allowlist entry",
        );
        let buckets = Self {
            leases: Arc::default(),
            tokens: IntGaugeVec::new(opts, &["container", "upstream"])?,
        };
        registry.register(Box::new(buckets.clone()))?;
        Ok(buckets)
    }

    /// Frees the buckets of upstreams that nobody asked for in the last five minutes.
    pub fn free_idle(&self, now: Instant) {
        for lease in live(&mut self.leases.lock()) {
            lease.free_idle(now);
        }
    }

    /// Counts a request; an error says how long to wait.
    pub(super) fn count(
        &self,
        container: &Container,
        flow: &Flow,
        bucket: &str,
        rate: Rate,
    ) -> Result<(), Duration> {
        let lease = container.owned(|| Arc::new(Buckets::new(container)));
        if !lease.known.load(Ordering::Relaxed) && !lease.known.swap(true, Ordering::Relaxed) {
            self.leases.lock().push(Arc::downgrade(lease));
        }
        lease.take(flow, bucket, rate)
    }
}

/// Those of leases that hold; the others are forgotten.
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
        // Held to the end, so that two who ask at once do not see each other's half.
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

/// The buckets of one lease, by their names. Owned by it, so that they are gone with it.
struct Buckets {
    container: ContainerId,
    ended: CancellationToken,
    began: Instant,
    known: AtomicBool,
    /// By names that the configuration made.
    buckets: RwLock<HashMap<Box<str>, Bucket, RandomState>>,
}

struct Bucket {
    rate: Rate,
    /// The entry it counts for.
    upstream: Box<str>,
    limiter: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
    /// As of the last request.
    tokens: AtomicU32,
    /// When that was, in milliseconds since the lease's first request.
    last: AtomicU64,
}

impl Buckets {
    fn new(container: &Container) -> Self {
        Self {
            container: container.id.clone(),
            ended: container.ended().clone(),
            began: Instant::now(),
            known: AtomicBool::new(false),
            buckets: RwLock::default(),
        }
    }

    /// Several requests at once share the lock; it is taken whole only for a bucket that is new,
    /// or whose rate a reload changed.
    fn take(&self, flow: &Flow, name: &str, rate: Rate) -> Result<(), Duration> {
        let at = self.millis(flow.started);
        if let Some(bucket) = self.buckets.read().get(name)
            && bucket.rate == rate
        {
            return bucket.take(at);
        }
        let mut buckets = self.buckets.write();
        match buckets.get(name) {
            Some(bucket) if bucket.rate == rate => bucket.take(at),
            _ => {
                let bucket = Bucket::new(rate, flow.upstream());
                let taken = bucket.take(at);
                buckets.insert(name.into(), bucket);
                taken
            }
        }
    }

    /// A bucket that is not full again stays, lest forgetting it fill it.
    fn free_idle(&self, now: Instant) {
        let now = self.millis(now);
        self.buckets.write().retain(|_, bucket| {
            let idle = now.saturating_sub(bucket.last.load(Ordering::Relaxed));
            Duration::from_millis(idle) < IDLE.max(bucket.rate.refill())
        });
    }

    /// By entry; the lowest, where hosts below one entry have limits of their own.
    fn tokens(&self) -> HashMap<Box<str>, u32> {
        let mut lowest = HashMap::new();
        for bucket in self.buckets.read().values() {
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
        // Most requests meet the millisecond of the one before, and have nothing to write.
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
