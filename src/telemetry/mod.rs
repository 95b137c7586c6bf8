//! What operators see: logs, the audit log, the newest flows.

mod audit_file;
mod audit_head;
mod audit_log;
mod audit_verify;
#[cfg(test)]
mod ended;
mod flow_log;
mod journal;
mod light;
mod line_buffer;
mod logging;
mod lost;
mod newest;
mod push_log;
mod shard;

pub use audit_file::AuditFile;
pub use audit_log::AuditLog;
pub use audit_verify::{AuditBroken, Gap, Verified, verify as verify_audit};
pub use journal::Journal;
pub use light::{Light, Lit};
pub use logging::init as init_logging;
pub use lost::{KIND as LOST, Lost};
pub use push_log::PushLog;
