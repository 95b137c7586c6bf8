//! Watching, and nothing else: observers write no verdict, and of a flow's bytes none but the
//! trace context that its client sent.

mod audit;
mod encoded_line;
mod hot_counters;
mod json;
mod line;
mod line_budget;
mod metrics;
mod settings;
mod sharded;
mod sink;
mod trace;
mod window;

pub use audit::Audit;
pub use json::{hex, rfc_3339};
pub use metrics::Metrics;
pub use settings::AuditSettings;
pub use sink::{AuditSink, CHAIN_BYTES, Destination};
pub use trace::{Collector, Span, SpanSink, Trace, Traces};
