//! Limits of a container's requests to each allowlist entry, and of its messages to each MCP
//! server.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::contract::{Entry, EntryMap, GATEWAY, Host, HostPattern};

/// The bucket of requests to unlisted hosts. The policy addon, which comes later in the chain,
/// denies these requests, except those that an MCP mount sends.
const UNLISTED: &str = "none";

/// The rate and the burst of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests a second on average.
    pub per_second: NonZeroU32,
    /// The number of requests that a full bucket permits at once.
    pub burst: NonZeroU32,
}

impl Rate {
    /// The time in which an empty bucket becomes full, rounded up to seconds.
    pub(super) fn refill(self) -> Duration {
        Duration::from_secs(self.burst.get().div_ceil(self.per_second.get()).into())
    }
}

/// The limits of a lease's requests to each upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    defaults: Rate,
    per_upstream: EntryMap<Limit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    pattern: HostPattern,
    label: Box<str>,
    rate: Rate,
}

impl RequestLimits {
    /// Makes the limits. `defaults` applies to hosts without a pattern in `per_upstream`.
    pub fn new(
        defaults: Rate,
        per_upstream: impl IntoIterator<Item = (HostPattern, Rate)>,
    ) -> Self {
        let per_upstream = per_upstream.into_iter().map(|(pattern, rate)| {
            let limit = Limit {
                label: pattern.to_string().into(),
                pattern: pattern.clone(),
                rate,
            };
            (pattern, limit)
        });
        Self {
            defaults,
            per_upstream: per_upstream.collect(),
        }
    }

    /// The name and rate of the bucket that a request draws from:
    /// - the bucket [`UNLISTED`] if the host has no allowlist entry
    /// - the limit's own bucket if the host has a limit whose pattern is narrower than the entry's,
    ///   or is granted
    /// - otherwise the entry's bucket, with the rate of the host's limit or the default rate
    pub(super) fn bucket_of<'a>(
        &'a self,
        host: &Host,
        entry: Option<&'a Entry>,
    ) -> (&'a str, Rate) {
        let Some(entry) = entry else {
            return (UNLISTED, self.defaults);
        };
        match self.per_upstream.find(host) {
            // All granted hosts have one entry, whose bucket has one rate.
            Some(limit) if entry.grant.is_some() || is_narrower(&limit.pattern, &entry.pattern) => {
                (&limit.label, limit.rate)
            }
            Some(limit) => (&entry.label, limit.rate),
            None => (&entry.label, self.defaults),
        }
    }

    /// The name and rate of the bucket of messages to an MCP server. Its rate is the default, since
    /// `per_upstream` has hosts only.
    pub(super) fn bucket_of_server<'s>(&self, server: Option<&'s str>) -> (&'s str, Rate) {
        (server.unwrap_or(GATEWAY), self.defaults)
    }
}

/// Whether `one` is narrower than `other`; both match the same host.
fn is_narrower(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Exactly(_), HostPattern::Below(_)) => true,
        (HostPattern::Below(one), HostPattern::Below(other)) => one.len() > other.len(),
        (_, HostPattern::Exactly(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use prometheus::{Registry, TextEncoder};
    use testkit::each_row;

    use super::*;
    use crate::contract::{
        Addon, Code, Container, Denial, Direction, Frame, Kind, McpTarget, Outcome, Request,
    };
    use crate::fixtures::{code, container, entry, flow_of, mcp_flow, request, verdict};
    use crate::rate_limit::{RateBuckets, RateLimit, RateLimitSettings, Rejections, tests};

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
        let per_upstream = per_upstream
            .iter()
            .map(|(pattern, rate)| (HostPattern::parse(pattern).unwrap(), *rate));
        let settings = RateLimitSettings {
            requests: Some(RequestLimits::new(defaults, per_upstream)),
            ..tests::settings(1_000_000, u32::MAX, u32::MAX)
        };
        let rejections = Rejections::new(&Registry::new()).unwrap();
        RateLimit::new(settings, buckets.clone(), rejections)
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
        flow.start_mut().entry = Some(entry(label));
        verdict(addon.request(&mut flow, &mut get()))
    }

    fn get() -> Request {
        request("/", &[])
    }

    /// Tokens a second, so few that no bucket gains one within a test.
    const SLOW: u32 = 1;

    #[test]
    fn a_burst_passes_and_the_next_request_is_denied_with_the_time_to_wait() {
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
    fn all_names_under_a_wildcard_share_one_bucket_per_container() {
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
    fn a_limit_applies_by_host_and_has_its_own_bucket_if_it_is_narrower_than_the_entry() {
        let limits = limits(
            rate(SLOW, 10),
            &[
                ("api.example.com", rate(SLOW, 3)),
                ("*.example.org", rate(SLOW, 5)),
            ],
        );
        each_row(
            [
                ("*.example.com", "api.example.com", 3),
                ("*.example.com", "www.example.com", 10),
                ("a.example.org", "a.example.org", 5),
                ("b.example.org", "b.example.org", 5),
                ("example.net", "example.net", 10),
            ],
            |(entry, host, most)| {
                assert_eq!(
                    limits.passed(&container("web"), entry, host),
                    most,
                    "{host}"
                );
            },
        );
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
            flow.start_mut().entry = None;
            code(limits.addon.request(&mut flow, &mut get())).is_none()
        });
        assert_eq!(passed.count(), 5);
    }

    #[test]
    fn messages_to_a_server_are_limited_and_messages_from_a_server_are_not() {
        fn kb() -> McpTarget {
            McpTarget::Server("kb".into())
        }
        let limits = limits(rate(SLOW, 5), &[]);
        let web = container("web");
        let passed = |server: Option<&str>, frame: fn(&str) -> Frame| {
            let sent = (0..20).filter(|_| {
                let mut flow = mcp_flow(&web, server, "tools/call");
                code(
                    limits
                        .addon
                        .mcp_request(&mut flow, &mut frame("tools/call")),
                )
                .is_none()
            });
            sent.count()
        };
        let request = |method: &str| Frame::request(Direction::ToServer, kb(), method, None);
        let notification =
            |method: &str| Frame::notification(Direction::ToServer, kb(), method, None);
        let to_client = |method: &str| Frame::request(Direction::ToClient, kb(), method, None);
        assert_eq!(passed(Some("kb"), to_client), 20);
        assert_eq!(passed(Some("kb"), request), 5);
        assert_eq!(passed(Some("weather"), notification), 5);
        assert_eq!(passed(None, request), 5);
        assert_eq!(passed(Some("kb"), notification), 0);
        let mut flow = mcp_flow(&web, Some("kb"), "tools/call");
        let denial = verdict(
            limits
                .addon
                .mcp_request(&mut flow, &mut request("tools/call")),
        );
        assert_eq!(denial.unwrap_err().to_json()["upstream"], "kb");
    }

    #[test]
    fn connects_and_dry_runs_are_not_counted_as_requests() {
        let limits = limits(rate(SLOW, 1), &[]);
        let web = container("web");
        for _ in 0..10 {
            let mut connect = flow_of(&web, Kind::Tunnel, "api.example.com");
            assert_eq!(code(limits.addon.tunnel(&mut connect)), None);
            let mut dry_run = flow_of(&web, Kind::Http, "api.example.com").dry_run();
            assert_eq!(code(limits.addon.request(&mut dry_run, &mut get())), None);
        }
        assert_eq!(limits.passed(&web, "api.example.com", "api.example.com"), 1);
    }

    #[test]
    fn only_flows_denied_with_rate_limited_are_counted_as_rejections() {
        let registry = Registry::new();
        let rejections = Rejections::new(&registry).unwrap();
        let limits = limits(rate(1, 1), &[]);
        let settings = limits.addon.settings;
        let addon = RateLimit::new(settings, limits.buckets, rejections);
        for (code, counted) in [(Code::MalformedRequest, 0), (Code::RateLimited, 1)] {
            let outcome = Outcome {
                status: 429,
                denial: Some(Denial::new(code, "no")),
                aborted: false,
                duration: Duration::from_millis(30),
            };
            let flow = flow_of(&container("web"), Kind::Dns, "api.example.com");
            addon.finished(&flow, &outcome);
            let text = TextEncoder::new()
                .encode_to_string(&registry.gather())
                .unwrap();
            let series =
                r#"proxy_rate_limit_rejected_total{container="web",upstream="api.example.com"} 1"#;
            assert_eq!(text.matches(series).count(), counted, "{text}");
        }
    }

    #[test]
    fn a_reload_changes_the_rate_of_a_lease_that_has_begun() {
        let limits = limits(rate(SLOW, 1), &[]);
        let (web, host) = (container("web"), "api.example.com");
        assert_eq!(limits.passed(&web, host, host), 1);
        let reloaded = addon(&limits.buckets, rate(SLOW, 4), &[]);
        let passed = (0..10).filter(|_| ask(&reloaded, &web, host, host).is_ok());
        assert_eq!(passed.count(), 4);
        let settings = RateLimitSettings {
            requests: None,
            ..reloaded.settings
        };
        let off = RateLimit::new(settings, reloaded.buckets, reloaded.rejections);
        assert!((0..10).all(|_| ask(&off, &web, host, host).is_ok()));
    }

    #[test]
    fn a_bucket_is_freed_when_it_is_idle_and_full_again() {
        let limits = limits(rate(1, 1), &[("slow.example.com", rate(1, 3600))]);
        let web = container("web");
        for host in ["quick.example.com", "slow.example.com"] {
            limits.ask(&web, host, host).unwrap();
        }
        let left_after = |minutes: u64| {
            let later = Instant::now() + Duration::from_secs(60 * minutes);
            limits.buckets.free_idle(later);
            limits.text().matches("container=\"web\"").count()
        };
        assert_eq!(left_after(4), 2);
        assert_eq!(left_after(6), 1);
        assert_eq!(left_after(61), 0);
    }

    #[test]
    fn the_metric_has_the_tokens_at_the_last_request_until_the_lease_ends() {
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
