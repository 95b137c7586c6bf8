//! Limits of the tunnels that one container opens.
//!
//! Nearly every tunnel costs a TLS handshake, by far the most expensive operation that a client can
//! cause before any request is judged. Each handshake follows its own CONNECT, so CONNECTs are
//! counted.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use super::take;
use crate::contract::Container;
use crate::contract::settings::at_least_one;

/// The burst, as a multiple of the tunnels per second: programs open many tunnels when they start.
const BURST_SECONDS: NonZeroU32 = at_least_one(4);

/// The tunnels that a lease may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelBudget {
    /// Tunnels a second on average. Four times as many may be opened at once.
    pub per_second: NonZeroU32,
}

impl TunnelBudget {
    pub(super) fn burst(self) -> NonZeroU32 {
        self.per_second.saturating_mul(BURST_SECONDS)
    }

    /// Counts a tunnel. Over the limit, the error is the time to wait.
    pub(super) fn count(self, container: &Container) -> Result<(), Duration> {
        let mut current = container.state_or_init(|| Mutex::new(self.bucket())).lock();
        // A reload may change the budget of a lease that has begun.
        if current.budget != self {
            *current = self.bucket();
        }
        take(&current.limiter)
    }

    fn bucket(self) -> TunnelBucket {
        let quota = Quota::per_second(self.per_second).allow_burst(self.burst());
        TunnelBucket {
            budget: self,
            limiter: RateLimiter::direct(quota),
        }
    }
}

/// The token bucket of a lease's tunnels, and the budget that it was made for.
struct TunnelBucket {
    budget: TunnelBudget,
    limiter: DefaultDirectRateLimiter,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract::{Addon, Code, Kind, OwnedFlow};
    use crate::fixtures::{code, container, flow_of, query, request, verdict};
    use crate::rate_limit::{RateLimit, tests};

    /// The burst at one tunnel a second, which is too slow for the bucket to refill within a test.
    const BURST: usize = 4;

    fn limit(per_second: u32, names_per_minute: u32) -> RateLimit {
        tests::limit(per_second, u32::MAX, names_per_minute)
    }

    fn tunnel(container: &Arc<Container>) -> OwnedFlow {
        flow_of(container, Kind::Tunnel, "api.example.com")
    }

    /// Opens `tunnels` tunnels, and returns how many of them pass.
    fn passed(limit: &RateLimit, container: &Arc<Container>, tunnels: usize) -> usize {
        let open = |_: &usize| code(limit.tunnel(&mut tunnel(container))).is_none();
        (0..tunnels).filter(open).count()
    }

    #[test]
    fn tunnels_over_the_budget_are_denied_with_the_time_to_wait() {
        let (limit, web) = (limit(1, 100), container("web"));
        assert_eq!(passed(&limit, &web, BURST), BURST);
        let denial = verdict(limit.tunnel(&mut tunnel(&web))).unwrap_err();
        assert_eq!(denial.code(), Code::RateLimited);
        assert_eq!(denial.sentence(), "Rate limit exceeded");
        assert_eq!(denial.rule_name(), Some("limits.tunnels_per_second"));
        let json = denial.to_json();
        assert_eq!(json["container_id"], "web");
        assert_eq!(json["upstream"], "api.example.com");
        assert_eq!(json["retry_after"], 1);
        assert_eq!(passed(&limit, &container("db"), 10), BURST);
    }

    #[test]
    fn plain_requests_questions_and_dry_runs_do_not_count_as_tunnels() {
        let (limit, web) = (limit(1, 100), container("web"));
        for _ in 0..10 {
            let mut plain = flow_of(&web, Kind::Http, "api.example.com");
            assert_eq!(code(limit.tunnel(&mut plain)), None);
            assert_eq!(
                code(limit.request(&mut plain, &mut request("/", &[]))),
                None
            );
            let mut question = flow_of(&web, Kind::Dns, "api.example.com");
            let asked = query("api.example.com");
            assert_eq!(code(limit.dns_query(&mut question, &asked)), None);
            assert_eq!(code(limit.tunnel(&mut tunnel(&web).dry_run())), None);
        }
        assert_eq!(passed(&limit, &web, 10), BURST);
    }

    #[test]
    fn a_dry_run_notes_the_limit() {
        let limit = limit(50, 100);
        let mut dry = tunnel(&container("web")).dry_run();
        assert_eq!(code(limit.tunnel(&mut dry)), None);
        let notes: Vec<_> = dry.notes().into_iter().map(|note| note.text).collect();
        assert_eq!(notes, ["at most 50 tunnels a second, 200 at once"]);
    }

    #[test]
    fn a_tunnel_over_the_budget_is_denied_before_its_name_is_counted() {
        let (limit, web) = (limit(1, 1), container("web"));
        assert_eq!(passed(&limit, &web, 10), BURST);
        let over = verdict(limit.tunnel(&mut flow_of(&web, Kind::Tunnel, "b.example.com")));
        assert_eq!(
            over.unwrap_err().rule_name(),
            Some("limits.tunnels_per_second")
        );
    }

    #[test]
    fn a_reload_changes_the_budget_of_a_lease_that_has_begun() {
        let web = container("web");
        assert_eq!(passed(&limit(1, 100), &web, 10), BURST);
        assert_eq!(passed(&limit(2, 100), &web, 10), 2 * BURST);
    }
}
