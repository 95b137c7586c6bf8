//! JSON-RPC errors that a server gets for its requests.

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
