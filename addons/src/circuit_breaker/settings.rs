//! `circuit_breakers` in `policy.yaml`.

use std::time::Duration;

use super::Thresholds;
use crate::contract::settings::{Fields, Files, Passthrough, at_least_one};
use crate::contract::{EntryMap, Host, HostPattern, Origin};

/// A single failed request does not open a circuit, but an outage does within a few requests.
const DEFAULTS: Thresholds = Thresholds {
    failures: at_least_one(5),
    recovery: Duration::from_secs(30),
    successes: at_least_one(2),
};

/// Upstreams with long outages. Without `upstreams`, their circuits open after 3 faults and stay
/// open for 60 s.
const LONG_OUTAGES: [&str; 3] = ["api.anthropic.com", "api.openai.com", "api.tavily.com"];

/// When circuits open and close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitBreakerSettings {
    /// The thresholds of hosts that `upstreams` does not match.
    pub defaults: Thresholds,
    /// The thresholds by host pattern.
    pub upstreams: EntryMap<Thresholds>,
    /// Hosts whose tunnels are not decrypted.
    pub passthrough: EntryMap<Origin>,
}

impl CircuitBreakerSettings {
    /// Reads the settings. Keys that an upstream omits have the value of `defaults`.
    pub fn read(files: &Files<'_>) -> Self {
        let fields = files.policy.fields().section("circuit_breakers");
        let defaults = thresholds(&fields.section("defaults"), DEFAULTS);
        let strict = Thresholds {
            failures: at_least_one(3),
            recovery: Duration::from_secs(60),
            ..defaults
        };
        let by_default = LONG_OUTAGES
            .into_iter()
            .map(|name| (HostPattern::Exactly(Host::Name(name.into())), strict));
        Self {
            defaults,
            upstreams: fields.or("upstreams", by_default.collect(), |at| {
                at.by_host(|fields| thresholds(fields, defaults))
            }),
            passthrough: Passthrough::read(files).hosts(),
        }
    }
}

fn thresholds(fields: &Fields<'_>, otherwise: Thresholds) -> Thresholds {
    Thresholds {
        failures: fields.count("failure_threshold", otherwise.failures),
        recovery: fields.or("recovery_timeout", otherwise.recovery, |at| at.seconds()),
        successes: fields.count("success_threshold", otherwise.successes),
    }
}
