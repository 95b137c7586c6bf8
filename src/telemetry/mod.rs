//! What operators see: logs, the audit log, the newest flows.

mod audit_file;
mod audit_log;
#[cfg(test)]
mod ended;
pub mod flow_log;
mod light;
mod line_buffer;
mod logging;
mod push_log;

pub use audit_file::{AuditBroken, AuditFile, verify as verify_audit};
pub use audit_log::AuditLog;
pub use flow_log::FlowLog;
pub use light::{Light, Lit};
pub use logging::init as init_logging;
pub use push_log::PushLog;
