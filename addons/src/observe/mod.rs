//! Watching, and nothing else: observers write no verdict and no byte of a flow.

mod audit;
mod budget;
mod line;
mod metrics;

pub use audit::{Audit, AuditSettings, AuditSink};
pub use line::AuditLine;
pub use metrics::Metrics;
