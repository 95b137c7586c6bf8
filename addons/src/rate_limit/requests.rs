//! Requests of one container to one entry of the allowlist.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::{Mutex, RwLock};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use crate::contract::{Container, ContainerId, Entry, EntryMap, Flow, Host, HostPattern};

/// How long a bucket outlives the last request to its upstream.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// The bucket of requests to hosts that no entry has: they are denied, and a flood of them is
/// to be turned away as cheaply as any other.
const UNLISTED: &str = "none";

/// How often, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests a second in the long run.
    pub per_second: NonZeroU32,
    /// Requests at once, after a pause.
    pub burst: NonZeroU32,
}

impl Rate {
    /// How long an empty bucket takes to be full again.
    fn refill(self) -> Duration {
        Duration::from_secs((self.burst.get() / self.per_second.get()).into())
    }
}

/// What a lease may ask each upstream for.
pub struct RequestLimits {
    defaults: Rate,
    per_upstream: EntryMap<Limit>,
}

struct Limit {
    pattern: HostPattern,
    label: Box<str>,
    rate: Rate,
}

impl RequestLimits {
    /// `per_upstream` says what is other than `defaults`.
    pub fn new(
        defaults: Rate,
        per_upstream: impl IntoIterator<Item = (HostPattern, Rate)>,
    ) -> Self {
        let mut map = EntryMap::default();
        for (pattern, rate) in per_upstream {
            let limit = Limit {
                label: pattern.to_string().into(),
                pattern: pattern.clone(),
                rate,
            };
            map.insert(pattern, limit);
        }
        Self {
            defaults,
            per_upstream: map,
        }
    }

    /// The bucket that a request draws from, and how fast that fills. It is the entry's; a limit
    /// for something narrower than the entry has a bucket of its own.
    pub(super) fn bucket_of<'a>(
        &'a self,
        host: &Host,
        entry: Option<&'a Entry>,
    ) -> (&'a str, Rate) {
        let Some(entry) = entry else {
            return (UNLISTED, self.defaults);
        };
        match self.per_upstream.find(host) {
            Some(limit) if is_narrower(&limit.pattern, &entry.pattern) => {
                (&limit.label, limit.rate)
            }
            Some(limit) => (&entry.label, limit.rate),
            None => (&entry.label, self.defaults),
        }
    }
}

/// Of two patterns that match the same host.
fn is_narrower(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Exactly(_), HostPattern::Below(_)) => true,
        (HostPattern::Below(one), HostPattern::Below(other)) => one.len() > other.len(),
        (_, HostPattern::Exactly(_)) => false,
    }
}

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
        let lease = container.owned(|| Buckets::new(container));
        if !lease.known.load(Ordering::Relaxed) && !lease.known.swap(true, Ordering::Relaxed) {
            self.leases.lock().push(Arc::downgrade(&lease));
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
    buckets: RwLock<HashMap<Box<str>, Bucket>>,
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
        self.last.fetch_max(at, Ordering::Relaxed);
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
    use prometheus::TextEncoder;

    use super::*;
    use crate::contract::{Addon, Code, Denial, Kind, Request};
    use crate::fixtures::{code, container, entry, flow_of, request, verdict};
    use crate::rate_limit::{DnsBudget, RateLimit, RateLimitSettings};

    fn rate(per_second: u32, burst: u32) -> Rate {
        let [per_second, burst] = [per_second, burst].map(|n| NonZeroU32::new(n).unwrap());
        Rate { per_second, burst }
    }

    struct Limits {
        registry: Registry,
        buckets: RateBuckets,
        addon: RateLimit,
    }

    fn limits(defaults: Rate, per_upstream: &[(&str, Rate)]) -> Limits {
        let registry = Registry::new();
        let buckets = RateBuckets::new(&registry).unwrap();
        let addon = addon(&buckets, defaults, per_upstream);
        Limits {
            registry,
            buckets,
            addon,
        }
    }

    fn addon(buckets: &RateBuckets, defaults: Rate, per_upstream: &[(&str, Rate)]) -> RateLimit {
        let most = NonZeroU32::MAX;
        let per_upstream = per_upstream
            .iter()
            .map(|(pattern, rate)| (HostPattern::parse(pattern).unwrap(), *rate));
        RateLimit::new(RateLimitSettings {
            dns: DnsBudget {
                queries_per_minute: most,
                distinct_names_per_minute: most,
            },
            requests: Some(RequestLimits::new(defaults, per_upstream)),
            buckets: buckets.clone(),
        })
    }

    impl Limits {
        fn ask(&self, container: &Arc<Container>, entry: &str, host: &str) -> Result<(), Denial> {
            ask(&self.addon, container, entry, host)
        }

        fn passed(&self, container: &Arc<Container>, entry: &str, host: &str) -> usize {
            (0..50)
                .filter(|_| self.ask(container, entry, host).is_ok())
                .count()
        }

        fn text(&self) -> String {
            let families = self.registry.gather();
            TextEncoder::new().encode_to_string(&families).unwrap()
        }
    }

    fn ask(
        addon: &RateLimit,
        container: &Arc<Container>,
        label: &str,
        host: &str,
    ) -> Result<(), Denial> {
        let mut flow = flow_of(container, Kind::Http, host);
        flow.entry = Some(entry(label));
        verdict(addon.request(&mut flow, &mut get()))
    }

    fn get() -> Request {
        request("/", &[])
    }

    /// Slow enough that no test sees a bucket fill.
    const SLOW: u32 = 1;

    #[test]
    fn a_burst_passes_and_the_next_request_is_told_how_long_to_wait() {
        let limits = limits(rate(SLOW, 3), &[]);
        let web = container("web");
        for _ in 0..3 {
            limits
                .ask(&web, "api.example.com", "api.example.com")
                .unwrap();
        }
        let denial = limits
            .ask(&web, "api.example.com", "api.example.com")
            .unwrap_err();
        assert_eq!(denial.code(), Code::RateLimited);
        assert_eq!(denial.sentence(), "Rate limit exceeded");
        let json = denial.to_json();
        assert_eq!(json["container_id"], "web");
        assert_eq!(json["upstream"], "api.example.com");
        assert_eq!(json["retry_after"], 1);
        assert_eq!(denial.retry_after_seconds(), Some(1));
    }

    #[test]
    fn a_bucket_belongs_to_container_and_entry_and_not_to_each_name() {
        let limits = limits(rate(SLOW, 10), &[]);
        let (web, db) = (container("web"), container("db"));
        let names: Vec<String> = (0..50).map(|n| format!("n{n}.example.com")).collect();
        let passed = |container| {
            let asked = names
                .iter()
                .map(|name| limits.ask(container, "*.example.com", name));
            asked.filter(Result::is_ok).count()
        };
        assert_eq!(passed(&web), 10);
        assert_eq!(passed(&db), 10);
        assert_eq!(
            limits.passed(&web, "other.example.org", "other.example.org"),
            10
        );
    }

    #[test]
    fn a_limit_holds_by_host_pattern_and_narrower_ones_have_their_own_bucket() {
        let limits = limits(
            rate(SLOW, 10),
            &[
                ("api.example.com", rate(SLOW, 3)),
                ("*.example.org", rate(SLOW, 5)),
            ],
        );
        for (entry, host, most) in [
            ("*.example.com", "api.example.com", 3),
            ("*.example.com", "www.example.com", 10),
            ("a.example.org", "a.example.org", 5),
            ("b.example.org", "b.example.org", 5),
            ("example.net", "example.net", 10),
        ] {
            assert_eq!(
                limits.passed(&container("web"), entry, host),
                most,
                "{host}"
            );
        }
        let web = container("web");
        assert_eq!(limits.passed(&web, "*.example.com", "api.example.com"), 3);
        assert_eq!(limits.passed(&web, "*.example.com", "www.example.com"), 10);
    }

    #[test]
    fn requests_that_no_entry_allows_share_one_bucket() {
        let limits = limits(rate(SLOW, 5), &[]);
        let web = container("web");
        let passed = (0..50).filter(|n| {
            let mut flow = flow_of(&web, Kind::Http, &format!("n{n}.example.com"));
            flow.entry = None;
            code(limits.addon.request(&mut flow, &mut get())).is_none()
        });
        assert_eq!(passed.count(), 5);
    }

    #[test]
    fn connects_and_rehearsals_are_not_counted() {
        let limits = limits(rate(SLOW, 1), &[]);
        let web = container("web");
        for _ in 0..10 {
            let mut connect = flow_of(&web, Kind::Tunnel, "api.example.com");
            assert_eq!(code(limits.addon.tunnel(&mut connect)), None);
            let mut rehearsal = flow_of(&web, Kind::Http, "api.example.com").rehearse();
            assert_eq!(code(limits.addon.request(&mut rehearsal, &mut get())), None);
        }
        assert_eq!(limits.passed(&web, "api.example.com", "api.example.com"), 1);
    }

    #[test]
    fn a_reload_changes_the_rate_of_a_lease_that_has_begun() {
        let limits = limits(rate(SLOW, 1), &[]);
        let (web, host) = (container("web"), "api.example.com");
        assert_eq!(limits.passed(&web, host, host), 1);
        let reloaded = addon(&limits.buckets, rate(SLOW, 4), &[]);
        let passed = (0..10).filter(|_| ask(&reloaded, &web, host, host).is_ok());
        assert_eq!(passed.count(), 4);
        let off = RateLimit::new(RateLimitSettings {
            requests: None,
            ..reloaded.0
        });
        assert!((0..10).all(|_| ask(&off, &web, host, host).is_ok()));
    }

    #[test]
    fn a_bucket_is_freed_when_it_is_idle_and_full_again() {
        let limits = limits(rate(1, 1), &[("slow.example.com", rate(1, 3600))]);
        let web = container("web");
        for host in ["quick.example.com", "slow.example.com"] {
            limits.ask(&web, host, host).unwrap();
        }
        let buckets = web.owned(|| Buckets::new(&web));
        let left_after = |minutes: u64| {
            let later = Instant::now() + Duration::from_secs(60 * minutes);
            limits.buckets.free_idle(later);
            buckets.buckets.read().len()
        };
        assert_eq!(left_after(4), 2);
        assert_eq!(left_after(6), 1);
        assert_eq!(left_after(61), 0);
    }

    #[test]
    fn tokens_are_told_as_of_the_last_request_until_the_lease_ends() {
        let limits = limits(rate(SLOW, 10), &[]);
        let web = container("web");
        for _ in 0..3 {
            limits.ask(&web, "*.example.com", "a.example.com").unwrap();
        }
        let series =
            r#"proxy_rate_limit_bucket_tokens{container="web",upstream="*.example.com"} 7"#;
        assert!(limits.text().contains(series), "{}", limits.text());
        assert_eq!(limits.passed(&web, "*.example.com", "b.example.com"), 7);
        assert!(limits.text().contains(r#"upstream="*.example.com"} 0"#));
        web.end();
        assert!(!limits.text().contains("container="), "{}", limits.text());
    }
}
