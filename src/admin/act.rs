//! Acts of operators, which the audit log records.

use std::sync::Arc;

use addons::contract::Container;

/// An act of an operator, for the audit log.
#[derive(Debug, Default)]
pub struct OperatorAct {
    /// The user id of the operator.
    pub uid: u32,
    /// The method of the audit line.
    pub method: &'static str,
    /// The container that the act concerns.
    pub container: Option<Arc<Container>>,
    /// The server that the act concerns.
    pub server: Option<Arc<str>>,
    /// The server's tool, or the method of an MCP request.
    pub name: Option<Arc<str>>,
}
