//! Observers of flows: audit log, metrics, traces. They deny nothing, and change nothing but the
//! trace context in a client's request or MCP message.

mod audit;
mod encoded_line;
mod json;
mod line;
mod line_budget;
mod metrics;
mod settings;
mod sink;
mod trace;
mod window;

pub use audit::Audit;
pub use json::{hex, rfc_3339};
pub use metrics::Metrics;
pub use settings::AuditSettings;
pub use sink::{AuditSink, CHAIN_BYTES, Destination};
pub use trace::{Collector, Span, SpanSink, Trace, Traces};
