//! Limits of DNS questions and distinct names.
//!
//! Names can carry data out, and all containers share the resolver. So a lease has a budget of
//! questions, and a budget of distinct names in questions, tunnels and plain requests.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use super::take;
use crate::contract::{Container, Host};

const MINUTE: Duration = Duration::from_secs(60);

/// Within this time, a repetition of the last counted name passes without a look-up in the map of
/// counted names.
const JUST_NOW: Duration = Duration::from_secs(1);

/// The limits of a lease's DNS questions and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsBudget {
    /// Limit on the questions in a minute.
    pub queries_per_minute: NonZeroU32,
    /// Limit on the different names in a minute, in questions, tunnels and plain requests together.
    pub distinct_names_per_minute: NonZeroU32,
}

impl DnsBudget {
    /// The token bucket of questions. Its burst is a quarter of the budget, but at least 100
    /// questions (or the whole budget if it is below 100), since programs send many questions when
    /// they start.
    fn quota(self) -> Quota {
        let per_minute = self.queries_per_minute;
        let burst = (per_minute.get() / 4).max(100).min(per_minute.get());
        Quota::per_minute(per_minute).allow_burst(NonZeroU32::new(burst).unwrap_or(per_minute))
    }

    /// Counts `host` if it is a name, and a question if `is_query`. Over a limit, the error has the
    /// limit's key under `dns` in `proxy.yaml`, and the time to wait.
    pub(super) fn count(
        self,
        container: &Container,
        host: &Host,
        is_query: bool,
        now: Instant,
    ) -> Result<(), (&'static str, Duration)> {
        let usage = container.state_or_init(|| Mutex::new(DnsUsage::new(self)));
        let mut usage = usage.lock();
        // A reload may change the budget of a lease that has begun. The counted names remain.
        if usage.budget != self {
            usage.budget = self;
            usage.queries = RateLimiter::direct(self.quota());
        }
        if is_query {
            take(&usage.queries).map_err(|wait| ("queries_per_minute", wait))?;
        }
        let Host::Name(_) = host else {
            return Ok(());
        };
        let most = self.distinct_names_per_minute.get() as usize;
        let seen = usage.names.see(host, now, most);
        seen.map_err(|wait| ("distinct_names_per_minute", wait))
    }
}

/// The use of the budget by a lease.
struct DnsUsage {
    budget: DnsBudget,
    queries: DefaultDirectRateLimiter,
    names: Names,
}

impl DnsUsage {
    fn new(budget: DnsBudget) -> Self {
        Self {
            budget,
            queries: RateLimiter::direct(budget.quota()),
            names: Names::default(),
        }
    }
}

/// The names that count towards the limit.
#[derive(Default)]
struct Names {
    /// The last counted name, and its time in `seen`.
    last: Option<(Host, Instant)>,
    /// The time of the last use of each name. A name whose last use was more than a minute ago is
    /// removed only when the map is full.
    seen: HashMap<Host, Instant>,
}

impl Names {
    /// Counts a name, or renews its time if it is counted already. If `most` other names were used
    /// within the last minute, the error is the time to wait.
    fn see(&mut self, host: &Host, now: Instant, most: usize) -> Result<(), Duration> {
        if let Some((last, at)) = &self.last
            && last == host
            && now.saturating_duration_since(*at) < JUST_NOW
        {
            return Ok(());
        }
        if !self.seen.contains_key(host) && self.seen.len() >= most {
            let age = |at: &Instant| now.saturating_duration_since(*at);
            self.seen.retain(|_, at| age(at) < MINUTE);
            if self.seen.len() >= most {
                let oldest = self.seen.values().map(age).max().unwrap_or_default();
                return Err(MINUTE.saturating_sub(oldest));
            }
        }
        self.seen.insert(host.clone(), now);
        self.last = Some((host.clone(), now));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract::{Addon, Code, Kind};
    use crate::fixtures::{code, container, flow_of, query, verdict};
    use crate::rate_limit::{RateLimit, tests};

    fn limit(queries: u32, names: u32) -> RateLimit {
        tests::limit(1_000_000, queries, names)
    }

    fn ask(limit: &RateLimit, container: &Arc<Container>, name: &str) -> Option<Code> {
        let mut flow = flow_of(container, Kind::Dns, name);
        code(limit.dns_query(&mut flow, &query(name)))
    }

    fn tunnel(
        limit: &RateLimit,
        container: &Arc<Container>,
        name: &str,
        after: u64,
    ) -> Option<Code> {
        let mut flow = flow_of(container, Kind::Tunnel, name);
        flow.start_mut().started += Duration::from_secs(after);
        code(limit.tunnel(&mut flow))
    }

    #[test]
    fn questions_over_the_budget_are_denied_with_the_time_to_wait() {
        let (limit, container) = (limit(5, 100), container("web"));
        for _ in 0..5 {
            assert_eq!(ask(&limit, &container, "a.example.com"), None);
        }
        let mut flow = flow_of(&container, Kind::Dns, "a.example.com");
        let denial = verdict(limit.dns_query(&mut flow, &query("a.example.com"))).unwrap_err();
        assert_eq!(denial.code(), Code::RateLimited);
        assert_eq!(denial.to_json()["container_id"], "web");
        assert_eq!(denial.to_json()["upstream"], "a.example.com");
        assert!((1..=12).contains(&denial.retry_after_seconds().unwrap()));
    }

    #[test]
    fn distinct_names_are_counted_over_questions_and_tunnels_together() {
        let (limit, container) = (limit(100, 3), container("web"));
        assert_eq!(ask(&limit, &container, "a.example.com"), None);
        assert_eq!(tunnel(&limit, &container, "b.example.com", 0), None);
        assert_eq!(ask(&limit, &container, "c.example.com"), None);
        let over = Some(Code::RateLimited);
        assert_eq!(ask(&limit, &container, "d.example.com"), over);
        assert_eq!(tunnel(&limit, &container, "e.example.com", 0), over);
        assert_eq!(ask(&limit, &container, "a.example.com"), None);
    }

    #[test]
    fn a_name_is_forgotten_a_minute_after_its_last_use() {
        let (limit, container) = (limit(100, 2), container("web"));
        let over = Some(Code::RateLimited);
        assert_eq!(tunnel(&limit, &container, "a.example.com", 0), None);
        assert_eq!(tunnel(&limit, &container, "b.example.com", 30), None);
        assert_eq!(tunnel(&limit, &container, "c.example.com", 59), over);
        assert_eq!(tunnel(&limit, &container, "c.example.com", 61), None);
        assert_eq!(tunnel(&limit, &container, "d.example.com", 62), over);
    }

    #[test]
    fn tunnels_do_not_count_as_questions_and_addresses_do_not_count_as_names() {
        let (limit, container) = (limit(1, 1), container("web"));
        for _ in 0..10 {
            assert_eq!(tunnel(&limit, &container, "a.example.com", 0), None);
        }
        assert_eq!(tunnel(&limit, &container, "8.8.8.8", 0), None);
        assert_eq!(ask(&limit, &container, "a.example.com"), None);
    }

    #[test]
    fn a_flood_of_one_container_does_not_use_up_the_budget_of_another() {
        let (limit, first, second) = (limit(1, 1), container("web"), container("db"));
        assert_eq!(ask(&limit, &first, "a.example.com"), None);
        assert_eq!(
            ask(&limit, &first, "a.example.com"),
            Some(Code::RateLimited)
        );
        assert_eq!(ask(&limit, &second, "a.example.com"), None);
    }

    #[test]
    fn a_flood_of_names_stores_no_more_names_than_the_budget() {
        let (limit, container) = (limit(u32::MAX, 10), container("web"));
        for n in 0..1000 {
            tunnel(&limit, &container, &format!("{n}.example.com"), n);
        }
        let unused = || unreachable!("the lease has counted names");
        let usage: &Mutex<DnsUsage> = container.state_or_init(unused);
        assert!(usage.lock().names.seen.len() <= 10);
    }

    #[test]
    fn a_dry_run_counts_nothing() {
        let (limit, container) = (limit(1, 1), container("web"));
        for name in ["a.example.com", "b.example.com"] {
            let mut flow = flow_of(&container, Kind::Dns, name).dry_run();
            assert_eq!(code(limit.dns_query(&mut flow, &query(name))), None);
        }
        assert_eq!(ask(&limit, &container, "c.example.com"), None);
    }

    #[test]
    fn a_reload_changes_the_budget_of_a_lease_that_has_begun() {
        let container = container("web");
        let small = limit(1, 100);
        assert_eq!(ask(&small, &container, "a.example.com"), None);
        assert_eq!(
            ask(&small, &container, "a.example.com"),
            Some(Code::RateLimited)
        );
        assert_eq!(ask(&limit(10, 100), &container, "a.example.com"), None);
    }
}
