//! Leaf certificates for permitted tunnels, with a rate limit for each lease.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Code, Denial, Host, Verdict, names};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::time::Instant;

use super::connection::Connection;
use crate::snapshot::Snapshot;

const MINUTE: Duration = Duration::from_secs(60);

/// Token bucket for the leaf certificates of one lease. Its size is `certificates_per_minute`, and
/// it refills evenly over a minute. Each call passes the rate, which a reload may have changed.
struct MintBudget(Mutex<Spent>);

struct Spent {
    /// Tokens that were taken and not yet refilled.
    count: f64,
    as_of: Instant,
}

impl MintBudget {
    fn new() -> Self {
        Self(Mutex::new(Spent {
            count: 0.0,
            as_of: Instant::now(),
        }))
    }

    /// Checks the bucket, and takes a token if `takes`. The error is the time until the next token,
    /// a minute at most.
    fn check(&self, per_minute: u32, takes: bool) -> Result<(), Duration> {
        if per_minute == 0 {
            return Err(MINUTE);
        }
        let (now, per_second) = (Instant::now(), f64::from(per_minute) / 60.0);
        let mut spent = self.0.lock();
        let earned = now.duration_since(spent.as_of).as_secs_f64() * per_second;
        *spent = Spent {
            count: (spent.count - earned).max(0.0),
            as_of: now,
        };
        let over = spent.count + 1.0 - f64::from(per_minute);
        // A smaller excess is a rounding error.
        if over > 1e-6 {
            return Err(Duration::from_secs_f64(over / per_second).min(MINUTE));
        }
        if takes {
            spent.count += 1.0;
        }
        Ok(())
    }
}

/// Denies a host without a cached certificate if the lease has no token to mint one. Takes no
/// token.
pub fn permit(connection: &Connection, snapshot: &Snapshot, host: &Host) -> Verdict {
    match connection.engine.authority.cached(host) {
        Some(_) => Ok(()),
        None => budget(connection, snapshot, false),
    }
}

/// Returns the TLS configuration for a host. A cached configuration is free. A new one takes a
/// token of the lease: a client could otherwise request signatures without end.
pub fn config(
    connection: &Connection,
    snapshot: &Snapshot,
    host: &Host,
) -> Result<Arc<ServerConfig>, Denial> {
    let outcomes = &connection.engine.metrics.leaf_certificates;
    let authority = &connection.engine.authority;
    if let Some(config) = authority.cached(host) {
        outcomes.with_label_values(&["cached"]).inc();
        return Ok(config);
    }
    budget(connection, snapshot, true)?;
    let minted = authority.mint(host);
    let outcome = if minted.is_ok() { "minted" } else { "failed" };
    outcomes.with_label_values(&[outcome]).inc();
    minted.map_err(|error| {
        tracing::error!(%host, %error, "cannot mint the certificate for an intercepted host");
        Denial::internal().by(names::PROXY)
    })
}

fn budget(connection: &Connection, snapshot: &Snapshot, takes: bool) -> Verdict {
    let container = connection.container.as_ref().ok_or_else(Denial::internal)?;
    let per_minute = snapshot.config.proxy.limits.certificates_per_minute;
    let checked = container
        .state_or_init(MintBudget::new)
        .check(per_minute, takes);
    checked.map_err(|wait| {
        let outcomes = &connection.engine.metrics.leaf_certificates;
        outcomes.with_label_values(&["limited"]).inc();
        Denial::new(Code::RateLimited, "Rate limit exceeded")
            .with("container_id", container.id.as_str())
            .with("upstream", "certificates")
            .retry_after(wait)
            .by(names::PROXY)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn waits(budget: &MintBudget, per_minute: u32) -> Option<u64> {
        let wait = budget.check(per_minute, true).err();
        wait.map(|wait| wait.as_secs_f64().round() as u64)
    }

    #[tokio::test(start_paused = true)]
    async fn the_bucket_holds_a_minutes_certificates_and_refills_evenly() {
        let budget = MintBudget::new();
        for _ in 0..3 {
            assert_eq!(budget.check(3, false), Ok(()));
            assert_eq!(waits(&budget, 3), None);
        }
        assert_eq!(waits(&budget, 3), Some(20));
        advance(Duration::from_secs(19)).await;
        assert_eq!(waits(&budget, 3), Some(1));
        advance(Duration::from_secs(1)).await;
        assert_eq!(waits(&budget, 3), None);
        assert_eq!(waits(&budget, 3), Some(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_rate_applies_at_once() {
        let budget = MintBudget::new();
        assert_eq!(waits(&budget, 1), None);
        assert_eq!(waits(&budget, 1), Some(60));
        assert_eq!(waits(&budget, 2), None);
        assert_eq!(waits(&budget, 2), Some(30));
        assert_eq!(waits(&budget, 1), Some(60));
        assert_eq!(waits(&budget, 0), Some(60));
    }
}
