//! The parts of `policy.yaml` that count: circuit breakers and rate limits.

use std::ops::RangeInclusive;
use std::time::Duration;

use addons::contract::settings::{Fields, Setting};
use addons::contract::{EntryMap, HostPattern};

use super::{CircuitBreaker, CircuitBreakers, RateLimit, RateLimits};

/// Zero would be a switch in disguise, and more than a million is no limit.
const COUNT: RangeInclusive<u32> = 1..=1_000_000;

/// Upstreams whose faults last: their breakers open sooner and stay open longer.
const PATIENT_UPSTREAMS: [&str; 3] = ["api.anthropic.com", "api.openai.com", "api.tavily.com"];

const SLOWER_UPSTREAMS: [(&str, u32); 3] = [
    ("api.github.com", 50),
    ("api.anthropic.com", 20),
    ("api.openai.com", 20),
];

/// `circuit_breakers`: what an upstream leaves out, the defaults say.
pub fn circuit_breakers(fields: &Fields<'_>) -> CircuitBreakers {
    let shipped = CircuitBreaker {
        failure_threshold: 5,
        recovery_timeout: Duration::from_secs(30),
        success_threshold: 2,
    };
    let defaults = breaker(&fields.section("defaults"), shipped);
    let patient = CircuitBreaker {
        failure_threshold: 3,
        recovery_timeout: Duration::from_secs(60),
        ..defaults
    };
    let upstreams = PATIENT_UPSTREAMS.map(|name| (name, patient));
    CircuitBreakers {
        defaults,
        upstreams: fields.or("upstreams", by_host(&upstreams), |at| {
            per_host(&at, |fields| breaker(fields, defaults))
        }),
    }
}

fn breaker(fields: &Fields<'_>, otherwise: CircuitBreaker) -> CircuitBreaker {
    CircuitBreaker {
        failure_threshold: fields.or("failure_threshold", otherwise.failure_threshold, |at| {
            at.number(COUNT)
        }),
        recovery_timeout: fields.or("recovery_timeout", otherwise.recovery_timeout, |at| {
            at.seconds()
        }),
        success_threshold: fields.or("success_threshold", otherwise.success_threshold, |at| {
            at.number(COUNT)
        }),
    }
}

/// `rate_limits`: what an upstream leaves out, the defaults say.
pub fn rate_limits(fields: &Fields<'_>) -> RateLimits {
    let shipped = RateLimit {
        requests_per_second: 100,
        burst_size: 200,
    };
    let defaults = limit(&fields.section("defaults"), shipped);
    let slower = SLOWER_UPSTREAMS.map(|(name, requests_per_second)| {
        let limit = RateLimit {
            requests_per_second,
            ..defaults
        };
        (name, limit)
    });
    RateLimits {
        enabled: fields.or("enabled", true, |at| at.boolean()),
        defaults,
        per_upstream: fields.or("per_upstream", by_host(&slower), |at| {
            per_host(&at, |fields| limit(fields, defaults))
        }),
    }
}

fn limit(fields: &Fields<'_>, otherwise: RateLimit) -> RateLimit {
    RateLimit {
        requests_per_second: fields.or(
            "requests_per_second",
            otherwise.requests_per_second,
            |at| at.number(COUNT),
        ),
        burst_size: fields.or("burst_size", otherwise.burst_size, |at| at.number(COUNT)),
    }
}

fn by_host<T: Copy>(values: &[(&str, T)]) -> EntryMap<T> {
    let mut map = EntryMap::default();
    for (name, value) in values {
        if let Ok(pattern) = HostPattern::parse(name) {
            map.insert(pattern, *value);
        }
    }
    map
}

fn per_host<'a, T>(at: &Setting<'a>, read: impl Fn(&Fields<'a>) -> T) -> Option<EntryMap<T>> {
    let mut map = EntryMap::default();
    for (key, value) in at.entries()? {
        let read = value.mapping(&read);
        match HostPattern::parse(&key.name) {
            Ok(pattern) => {
                if let Some(read) = read
                    && map.insert(pattern, read).is_some()
                {
                    value.refuse_key(key, "this host stands here already");
                }
            }
            Err(error) => value.refuse_key(key, error.to_string()),
        }
    }
    Some(map)
}
