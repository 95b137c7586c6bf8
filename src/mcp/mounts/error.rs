//! JSON-RPC errors that a server gets for its requests.

use addons::contract::RpcError;

use crate::mcp::error::{METHOD_NOT_FOUND, SERVER_ERROR, protocol_error};

/// JSON-RPC: a bug of ours.
const INTERNAL_ERROR: i64 = -32603;

/// Servers send no requests of this method in this session.
pub(super) fn method_not_found() -> RpcError {
    protocol_error(METHOD_NOT_FOUND, "Method not found")
}

/// Something of ours broke.
pub(super) fn internal() -> RpcError {
    protocol_error(INTERNAL_ERROR, "Internal error")
}

/// Too many requests wait.
pub(super) fn busy() -> RpcError {
    protocol_error(SERVER_ERROR, "Too many requests wait for the client")
}

/// The client is gone, or does not answer.
pub(super) fn nobody_answers() -> RpcError {
    protocol_error(SERVER_ERROR, "No client answers")
}
