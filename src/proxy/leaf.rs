//! A certificate for a permitted tunnel, within what a container may have minted.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Code, Denial, Host};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use rustls::ServerConfig;

use super::connection::Connection;
use crate::world::World;

/// What one lease may still have minted.
struct MintBudget(Mutex<Rated>);

struct Rated {
    per_minute: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
}

impl MintBudget {
    fn new(per_minute: NonZeroU32) -> Self {
        Self(Mutex::new(Rated::new(per_minute)))
    }

    /// Counts a certificate; an error says how long to wait. A reload may change the rate of a
    /// lease that has begun.
    fn take(&self, per_minute: NonZeroU32) -> Result<(), Duration> {
        let mut rated = self.0.lock();
        if rated.per_minute != per_minute {
            *rated = Rated::new(per_minute);
        }
        rated
            .limiter
            .check()
            .map_err(|until| until.wait_time_from(DefaultClock::default().now()))
    }
}

impl Rated {
    fn new(per_minute: NonZeroU32) -> Self {
        Self {
            per_minute,
            limiter: RateLimiter::direct(Quota::per_minute(per_minute)),
        }
    }
}

/// The TLS configuration for a host. What is cached costs nothing; a new one counts against
/// the lease, since a signature is work that a sandbox could ask for without end.
pub fn config(
    connection: &Connection,
    world: &World,
    host: &Host,
) -> Result<Arc<ServerConfig>, Denial> {
    let outcomes = &connection.engine.metrics.leaf_certificates;
    let authority = &connection.engine.authority;
    if let Some(config) = authority.cached(host) {
        outcomes.with_label_values(&["cached"]).inc();
        return Ok(config);
    }
    let container = connection.container.as_ref().ok_or_else(Denial::internal)?;
    let per_minute = NonZeroU32::new(world.config.proxy.limits.certificates_per_minute);
    let Some(per_minute) = per_minute else {
        return Err(limited(container.id.as_str()));
    };
    let budget = container.owned(|| MintBudget::new(per_minute));
    if let Err(wait) = budget.take(per_minute) {
        outcomes.with_label_values(&["limited"]).inc();
        return Err(limited(container.id.as_str()).retry_after(wait));
    }
    let minted = authority.mint(host);
    let outcome = if minted.is_ok() { "minted" } else { "failed" };
    outcomes.with_label_values(&[outcome]).inc();
    minted.map_err(|error| {
        tracing::error!(%host, %error, "no certificate for an intercepted host");
        Denial::internal().by("proxy")
    })
}

fn limited(container: &str) -> Denial {
    Denial::new(Code::RateLimited, "Rate limit exceeded")
        .with("container_id", container)
        .with("upstream", "certificates")
        .by("proxy")
}
