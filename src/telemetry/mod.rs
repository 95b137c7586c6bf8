//! What operators see: logs, the audit log, the newest flows.

mod audit_file;
pub mod flow_log;
mod logging;

pub use audit_file::{AuditBroken, AuditFile, verify as verify_audit};
pub use flow_log::FlowLog;
pub use logging::init as init_logging;
