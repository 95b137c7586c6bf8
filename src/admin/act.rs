//! Acts of operators, which the audit log records.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::Container;

use crate::approvals::Scope;

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
    /// The server's tool, the method of an MCP request, or the subject of a question or a grant.
    pub name: Option<Arc<str>>,
    /// The name and id of the operator, for a decision about a question or a grant.
    pub by: Option<String>,
    /// The question, by its id.
    pub approval: Option<String>,
    /// What an approval or a grant covers.
    pub scope: Option<Scope>,
    /// The operator's words.
    pub reason: Option<Arc<str>>,
    /// How long the question waited for the decision.
    pub waited: Option<Duration>,
}
