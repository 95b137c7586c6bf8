//! Watching, and nothing else: observers write no verdict, and of a flow's bytes none but the
//! trace context that its client sent.

mod audit;
mod budget;
mod json;
mod line;
mod metrics;
mod rejected;
mod sharded;
mod trace;
mod usual;
mod written;

pub use audit::{Audit, AuditSettings, AuditSink, Destination};
pub use json::hex;
pub use metrics::Metrics;
pub use trace::{Span, SpanSink, Trace};
