//! JSON-RPC errors that the gateway sends to servers, and that built-in servers send to clients.

use addons::contract::RpcError;

use crate::mcp::error::{INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_ERROR, protocol_error};

/// JSON-RPC: internal error.
const INTERNAL_ERROR: i64 = -32603;

/// The method is unknown, or the server may not request it in this session.
pub(super) fn method_not_found() -> RpcError {
    protocol_error(METHOD_NOT_FOUND, "Method not found")
}

/// The params are invalid.
pub(super) fn invalid_params(message: &'static str) -> RpcError {
    protocol_error(INVALID_PARAMS, message)
}

/// The proxy failed.
pub(super) fn internal() -> RpcError {
    protocol_error(INTERNAL_ERROR, "Internal error")
}

/// Too many requests of the server wait for the client.
pub(super) fn busy() -> RpcError {
    protocol_error(SERVER_ERROR, "Too many requests wait for the client")
}

/// The client is gone, or does not answer.
pub(super) fn nobody_answers() -> RpcError {
    protocol_error(SERVER_ERROR, "No client answers")
}
