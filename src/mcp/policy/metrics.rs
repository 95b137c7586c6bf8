//! Metrics of policies: decisions, and durations of evaluations.

use std::time::Duration;

use addons::contract::Effect;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Upper bounds of the histogram's buckets, in seconds: from the duration of a small bundle to the
/// default time-out of a command.
const BOUNDS: [f64; 12] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 5.0,
];

/// Value of the label `decision` for an evaluation that failed.
pub const FAILED: &str = "failed";
/// Value of the label `decision` for an evaluation that timed out.
pub const TIMED_OUT: &str = "timed_out";
/// Value of the label `decision` for a message for which the bundle is not loaded.
pub const UNAVAILABLE: &str = "unavailable";

/// The values of the label `decision` for an evaluation without a decision.
const FAILURES: [&str; 3] = [FAILED, TIMED_OUT, UNAVAILABLE];

/// The metrics of policies. Created once; a reload keeps them.
pub struct PolicyMetrics {
    decisions: IntCounterVec,
    durations: HistogramVec,
}

impl PolicyMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let decisions = Opts::new(
            "proxy_mcp_policy_decisions_total",
            "Decisions of MCP policies, by bundle",
        );
        let durations = HistogramOpts::new(
            "proxy_mcp_policy_duration_seconds",
            "Duration of evaluations of MCP policies in seconds, by bundle",
        );
        let metrics = Self {
            decisions: IntCounterVec::new(decisions, &["decision", "bundle"])?,
            durations: HistogramVec::new(durations.buckets(BOUNDS.to_vec()), &["bundle"])?,
        };
        registry.register(Box::new(metrics.decisions.clone()))?;
        registry.register(Box::new(metrics.durations.clone()))?;
        Ok(metrics)
    }

    /// Creates the time series of a bundle; new ones start at 0.
    pub fn create_configured(&self, bundle: &str) {
        let decisions = Effect::ALL.map(Effect::as_str);
        for decision in decisions.into_iter().chain(FAILURES) {
            self.decisions.with_label_values(&[decision, bundle]);
        }
        self.durations.with_label_values(&[bundle]);
    }

    /// Counts a decision of a bundle, or its failure.
    pub fn count(&self, bundle: &str, decision: &str) {
        self.decisions.with_label_values(&[decision, bundle]).inc();
    }

    /// Records the duration of one evaluation of a bundle.
    pub fn observe(&self, bundle: &str, duration: Duration) {
        let durations = self.durations.with_label_values(&[bundle]);
        durations.observe(duration.as_secs_f64());
    }
}
