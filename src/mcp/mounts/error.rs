//! JSON-RPC errors that are made here: for requests of servers, and of those that are built in.

use addons::contract::RpcError;

fn error(code: i64, message: &'static str) -> RpcError {
    RpcError {
        code,
        message: message.into(),
        data: None,
    }
}

/// Nobody takes the server's requests.
pub(super) fn method_not_found() -> RpcError {
    error(-32601, "Method not found")
}

/// What is asked for does not exist.
pub(super) fn invalid_params(message: &'static str) -> RpcError {
    error(-32602, message)
}

/// Something of ours broke.
pub(super) fn internal() -> RpcError {
    error(-32603, "Internal error")
}

/// Too many requests wait.
pub(super) fn busy() -> RpcError {
    error(-32000, "Too many requests wait for the client")
}

/// The client is gone, or does not answer.
pub(super) fn nobody_answers() -> RpcError {
    error(-32000, "No client answers")
}
