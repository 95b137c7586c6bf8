//! `rate_limits` in `policy.yaml`; `dns` and `limits.tunnels_per_second` in `proxy.yaml`.

use super::{DnsBudget, Rate, RequestLimits, TunnelBudget};
use crate::contract::settings::{Fields, Files, at_least_one};
use crate::contract::{EntryMap, Host, HostPattern};

/// The default limit of requests to an upstream. It is above the rate that agents need, so only an
/// endless loop reaches it.
const REQUESTS: Rate = Rate {
    per_second: at_least_one(100),
    burst: at_least_one(200),
};

/// The upstreams with a lower default, and their limit in requests a second. A `per_upstream` in
/// the file replaces this list.
const SLOWER_UPSTREAMS: [(&str, u32); 3] = [
    ("api.github.com", 50),
    ("api.anthropic.com", 20),
    ("api.openai.com", 20),
];

/// The limits of every lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitSettings {
    /// The tunnels that a lease may open.
    pub tunnels: TunnelBudget,
    /// The DNS questions and names of a lease.
    pub dns: DnsBudget,
    /// The requests of a lease to each upstream; `None` if requests are not counted.
    pub requests: Option<RequestLimits>,
}

impl RateLimitSettings {
    /// Reads the settings.
    pub fn read(files: &Files<'_>) -> Self {
        let proxy = files.proxy.fields();
        let dns = proxy.section("dns");
        Self {
            tunnels: TunnelBudget {
                per_second: proxy
                    .section("limits")
                    .count("tunnels_per_second", at_least_one(50)),
            },
            dns: DnsBudget {
                queries_per_minute: dns.count("queries_per_minute", at_least_one(3000)),
                distinct_names_per_minute: dns
                    .count("distinct_names_per_minute", at_least_one(300)),
            },
            requests: requests(&files.policy.fields().section("rate_limits")),
        }
    }
}

/// Reads the limits of requests. Keys that an upstream omits have the value of `defaults`.
fn requests(fields: &Fields<'_>) -> Option<RequestLimits> {
    let enabled = fields.or("enabled", true, |at| at.boolean());
    let defaults = rate(&fields.section("defaults"), REQUESTS);
    let slower = SLOWER_UPSTREAMS.into_iter().map(|(name, per_second)| {
        let rate = Rate {
            per_second: at_least_one(per_second),
            ..defaults
        };
        (HostPattern::Exactly(Host::Name(name.into())), rate)
    });
    let slower: EntryMap<Rate> = slower.collect();
    let per_upstream = fields.or("per_upstream", slower, |at| {
        at.by_host(|fields| rate(fields, defaults))
    });
    let per_upstream = per_upstream.iter().map(|(pattern, rate)| (pattern, *rate));
    enabled.then(|| RequestLimits::new(defaults, per_upstream))
}

fn rate(fields: &Fields<'_>, otherwise: Rate) -> Rate {
    Rate {
        per_second: fields.count("requests_per_second", otherwise.per_second),
        burst: fields.count("burst_size", otherwise.burst),
    }
}
