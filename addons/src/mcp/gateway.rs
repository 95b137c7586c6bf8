//! Judges messages without a server.

use super::denials::cut;
use crate::contract::{Code, Denial, Frame, McpTarget, Verdict};

/// Passes the methods that the gateway answers itself, from the container's own lists, sessions,
/// preferences and tasks. Also passes requests that the gateway refuses. Denies any other message: it needs a
/// server, whose rules apply to it.
pub(super) fn check_own(frame: &Frame) -> Verdict {
    if frame.target == McpTarget::Refused {
        return Ok(());
    }
    match &*frame.method {
        "initialize"
        | "ping"
        | "server/discover"
        | "subscriptions/listen"
        | "tools/list"
        | "prompts/list"
        | "resources/list"
        | "resources/templates/list"
        | "resources/unsubscribe"
        | "logging/setLevel"
        | "tasks/get"
        | "tasks/update"
        | "tasks/cancel" => Ok(()),
        method => {
            let sentence = format!("The MCP gateway does not answer {}", cut(method));
            Err(Denial::new(Code::MethodNotAllowed, sentence))
        }
    }
}
