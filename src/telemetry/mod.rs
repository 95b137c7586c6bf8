//! What operators see of it: the newest flows.

pub mod flow_log;
