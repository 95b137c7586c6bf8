//! Limits for one container and for all containers together, and their metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

/// Limit on the legacy sessions of one lease. To open another session, the least recently used idle
/// session is closed. If no session is idle, no other session is opened.
pub const MAX_SESSIONS: usize = 1024;
/// Limit on the streams of one lease that wait for events: GET streams, HTTP+SSE, subscriptions.
pub const MAX_STREAMS: usize = 1024;
/// Limit on the requests of one legacy session that are under way.
pub const MAX_CALLS: usize = 256;
/// Limit on the finished streams of one legacy session that are kept for a client that reconnects.
pub const MAX_KEPT_STREAMS: usize = 16;
/// Limit on the server-to-client requests (sampling, elicitation, roots) of one legacy session that
/// its client has not answered.
pub const MAX_OPEN_INPUT_REQUESTS: usize = 64;
/// Limit on the suspended calls of one lease. A call is suspended after an `input_required` result,
/// until the client sends its input in another request.
pub const MAX_SUSPENDED: usize = 64;
/// Limit on the suspended calls of all leases together.
pub const MAX_SUSPENDED_IN_ALL: usize = 1024;
/// Limit on the length of a client's `capabilities` object, in bytes of JSON.
pub const MAX_CAPABILITIES: usize = 16 * 1024;
/// Limit on the length of `clientInfo`, in bytes of JSON.
pub const MAX_INFO: usize = 4 * 1024;

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
            streams: gauge(
                "proxy_mcp_streams",
                "Open MCP event streams: GET, HTTP+SSE and subscriptions.",
            )?,
            suspended: gauge(
                "proxy_mcp_suspended_calls",
                "MCP calls that wait for an answer in the client's next request.",
            )?,
            limited,
        })
    }

    /// Counts one message, session or stream over this limit. For `sessions`, also counts a session
    /// that is opened in the place of an idle one.
    pub fn hit(&self, limit: &'static str) {
        self.limited.with_label_values(&[limit]).inc();
    }
}

/// A shared counter; [`Count::enter`] increments it up to a limit.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// Increments the count and the gauge. Returns `None` if the count has reached `most`. Dropping
    /// the guard decrements both.
    pub fn enter(&self, most: usize, gauge: &IntGauge) -> Option<Counted> {
        let entered = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < most).then_some(count + 1)
            });
        entered.ok()?;
        gauge.inc();
        Some(Counted {
            count: self.clone(),
            gauge: gauge.clone(),
        })
    }
}

/// Guard for one unit of a [`Count`]; dropping it decrements the count and the gauge.
pub struct Counted {
    count: Count,
    gauge: IntGauge,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}
