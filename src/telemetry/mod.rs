//! Log lines of the process, the audit log, and the newest flows for the admin API.

mod audit_chain;
mod audit_file;
mod audit_head;
mod audit_log;
mod audit_verify;
#[cfg(test)]
mod ended;
mod flow_log;
mod health_flag;
mod logging;
mod lost;
mod newest_flows;

pub use audit_log::AuditLog;
pub use audit_verify::{AuditBroken, Gap, Verified, verify as verify_audit};
pub use flow_log::FlowLog;
pub use health_flag::{HealthFlag, HealthGuard};
pub use logging::init as init_logging;
pub use lost::{KIND as LOST, Lost};
