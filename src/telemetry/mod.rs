//! What operators see: logs, the audit log, the newest flows.

mod audit_file;
mod audit_log;
#[cfg(test)]
mod ended;
mod flow_log;
mod journal;
mod light;
mod line_buffer;
mod logging;
mod newest;
mod push_log;
mod shard;

pub use audit_file::{AuditBroken, AuditFile, verify as verify_audit};
pub use audit_log::AuditLog;
pub use journal::Journal;
pub use light::{Light, Lit};
pub use logging::init as init_logging;
pub use push_log::PushLog;
