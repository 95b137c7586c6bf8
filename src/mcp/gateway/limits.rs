//! Limits for one container and for all containers together, and their metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

/// The most legacy sessions of one lease. The least recently used idle one is closed for a new one.
pub const MAX_SESSIONS: usize = 1024;
/// The most streams of one lease that wait for events: GET streams, HTTP+SSE, subscriptions.
pub const MAX_STREAMS: usize = 1024;
/// The most requests of one legacy session that are under way.
pub const MAX_CALLS: usize = 256;
/// The most finished streams of one legacy session that are kept for a client that reconnects.
pub const MAX_KEPT_STREAMS: usize = 16;
/// The most requests of servers that one legacy session has not answered yet.
pub const MAX_QUESTIONS: usize = 64;
/// The most suspended calls of one lease, which wait for an answer in their client's next request.
pub const MAX_SUSPENDED: usize = 64;
/// The most suspended calls of all leases.
pub const MAX_SUSPENDED_IN_ALL: usize = 1024;
/// The longest capabilities of a client, in bytes of JSON.
pub const MAX_CAPABILITIES: usize = 16 * 1024;
/// The longest name and version of a client, in bytes of JSON.
pub const MAX_INFO: usize = 4 * 1024;
/// The most resources of one subscription.
pub const MAX_SUBSCRIBED: usize = 256;
/// The longest URI of a subscription, in bytes.
pub const MAX_URI: usize = 4 * 1024;

/// Metrics of the gateway.
#[derive(Clone)]
pub struct GatewayMetrics {
    pub sessions: IntGauge,
    pub streams: IntGauge,
    pub suspended: IntGauge,
    limited: IntCounterVec,
}

/// Values of the label `limit`.
const LIMITS: [&str; 6] = [
    "sessions",
    "streams",
    "calls",
    "questions",
    "suspended",
    "replay",
];

impl GatewayMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            prometheus::Result::Ok(gauge)
        };
        let limited = IntCounterVec::new(
            Opts::new(
                "proxy_mcp_limited_total",
                "MCP messages, sessions and streams that were over a limit of the gateway, by limit.",
            ),
            &["limit"],
        )?;
        for limit in LIMITS {
            limited.with_label_values(&[limit]);
        }
        registry.register(Box::new(limited.clone()))?;
        Ok(Self {
            sessions: gauge("proxy_mcp_sessions", "MCP sessions that clients have open.")?,
            streams: gauge("proxy_mcp_streams", "Event streams of MCP that are open.")?,
            suspended: gauge(
                "proxy_mcp_suspended_calls",
                "MCP calls that wait for the client to come back with an answer.",
            )?,
            limited,
        })
    }

    /// Counts a rejection at this limit.
    pub fn hit(&self, limit: &'static str) {
        self.limited.with_label_values(&[limit]).inc();
    }
}

/// A count with a limit.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// Adds one, unless the count is `most`. Dropping the returned guard subtracts it.
    pub fn enter(&self, most: usize, gauge: Option<&IntGauge>) -> Option<Counted> {
        let entered = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < most).then_some(count + 1)
            });
        entered.ok()?;
        if let Some(gauge) = gauge {
            gauge.inc();
        }
        Some(Counted {
            count: self.clone(),
            gauge: gauge.cloned(),
        })
    }
}

/// Guard that holds one of a [`Count`] until it is dropped.
pub struct Counted {
    count: Count,
    gauge: Option<IntGauge>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Ordering::Relaxed);
        if let Some(gauge) = &self.gauge {
            gauge.dec();
        }
    }
}
