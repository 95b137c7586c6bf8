//! Limits each container's use of shared resources: upstreams, the resolver, and CPU time for TLS
//! handshakes.

mod buckets;
mod dns;
mod rejections;
mod requests;
mod settings;
mod tunnels;

use std::time::Duration;

use governor::DefaultDirectRateLimiter;
use governor::clock::{Clock, DefaultClock};

use crate::contract::{
    Addon, Code, Direction, DnsQuery, Flow, Frame, Host, Kind, Order, Outcome, Request, Step,
    Verdict, names,
};

pub use buckets::RateBuckets;
pub use dns::DnsBudget;
pub use rejections::Rejections;
pub use requests::{Rate, RequestLimits};
pub use settings::RateLimitSettings;
pub use tunnels::TunnelBudget;

/// Denies a flow that exceeds a budget of its lease.
pub struct RateLimit {
    settings: RateLimitSettings,
    buckets: RateBuckets,
    rejections: Rejections,
}

impl RateLimit {
    /// Gives every lease the same budgets. `buckets` and `rejections` are kept over reloads.
    #[must_use]
    pub fn new(settings: RateLimitSettings, buckets: RateBuckets, rejections: Rejections) -> Self {
        Self {
            settings,
            buckets,
            rejections,
        }
    }

    fn count_tunnel(&self, flow: &mut Flow) -> Verdict {
        if flow.kind != Kind::Tunnel {
            return Ok(());
        }
        let budget = self.settings.tunnels;
        let (each, burst) = (budget.per_second, budget.burst());
        flow.note(|| format!("at most {each} tunnels a second, {burst} at once"));
        let container = flow.container()?;
        flow.charge(|| budget.count(container)).map_err(|wait| {
            flow.rate_limited(wait)
                .rule("limits.tunnels_per_second")
                .hint("raise limits.tunnels_per_second in proxy.yaml")
        })
    }

    fn count_name(&self, flow: &Flow, host: &Host, is_query: bool) -> Verdict {
        let (budget, container) = (&self.settings.dns, flow.container()?);
        let counted = flow.charge(|| budget.count(container, host, is_query, flow.started));
        counted.map_err(|(limit, wait)| {
            flow.rate_limited(wait)
                .rule(format!("dns.{limit}"))
                .hint(format!("raise dns.{limit} in proxy.yaml"))
        })
    }

    fn count_request(&self, flow: &Flow) -> Verdict {
        let Some(limits) = &self.settings.requests else {
            return Ok(());
        };
        let (bucket, rate) = match flow.mcp() {
            Some(subject) => limits.bucket_of_server(subject.server.as_deref()),
            None => limits.bucket_of(flow.host(), flow.entry.as_deref()),
        };
        let (each, burst) = (rate.per_second, rate.burst);
        flow.note(|| format!("at most {each} requests a second to {bucket}, {burst} at once"));
        let (buckets, container) = (&self.buckets, flow.container()?);
        let counted = flow.charge(|| buckets.count(container, flow, bucket, rate));
        counted.map_err(|wait| {
            // Without an entry (an unlisted host, an MCP server), the default limit applies.
            let hint = match flow.entry {
                Some(_) => format!("raise the limit of {bucket} under rate_limits in policy.yaml"),
                None => "raise rate_limits.defaults in policy.yaml".to_owned(),
            };
            flow.rate_limited(wait).rule("rate_limits").hint(hint)
        })
    }
}

impl Addon for RateLimit {
    fn name(&self) -> &'static str {
        names::RATE_LIMIT
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY],
            ..Order::default()
        }
    }

    fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        // Counted first: a tunnel over the limit must not use up the budget of names.
        let counted = self.count_tunnel(flow);
        counted
            .and_then(|()| self.count_name(flow, flow.host(), false))
            .into()
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        self.count_request(flow).into()
    }

    fn dns_query<'a>(&'a self, flow: &'a mut Flow, query: &'a DnsQuery) -> Step<'a> {
        self.count_name(flow, &query.name, true).into()
    }

    /// Counts requests and notifications of the container. Messages from a server are not counted,
    /// since they would use up the container's budget.
    fn mcp_request<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        match frame.direction {
            Direction::ToServer => self.count_request(flow).into(),
            Direction::ToClient => Step::PASS,
        }
    }

    fn mcp_report<'a>(&'a self, flow: &'a mut Flow, _frame: &'a mut Frame) -> Step<'a> {
        self.count_request(flow).into()
    }

    /// Counts every flow that was over a limit, whichever component denied it.
    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        let denial = outcome.denial.as_ref();
        if denial.is_some_and(|denial| denial.code() == Code::RateLimited)
            && let Some(container) = flow.known_container()
        {
            self.rejections.count(container, flow.upstream_label());
        }
    }
}

/// Takes a token. Over the limit, the error is the time to wait.
fn take(limiter: &DefaultDirectRateLimiter) -> Result<(), Duration> {
    let taken = limiter.check();
    taken.map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::settings::at_least_one;

    /// Limits of tunnels a second, and of questions and names a minute. Requests are not counted,
    /// as with `rate_limits.enabled: false`.
    pub(super) fn settings(tunnels: u32, queries: u32, names: u32) -> RateLimitSettings {
        RateLimitSettings {
            tunnels: TunnelBudget {
                per_second: at_least_one(tunnels),
            },
            dns: DnsBudget {
                queries_per_minute: at_least_one(queries),
                distinct_names_per_minute: at_least_one(names),
            },
            requests: None,
        }
    }

    /// The addon with the limits of [`settings`].
    pub(super) fn limit(tunnels: u32, queries: u32, names: u32) -> RateLimit {
        let registry = prometheus::Registry::new();
        let buckets = RateBuckets::new(&registry).unwrap();
        let rejections = Rejections::new(&registry).unwrap();
        RateLimit::new(settings(tunnels, queries, names), buckets, rejections)
    }
}
