//! Judges text that a client sends to a server outside tool calls: in requests, in notifications
//! and in answers to input requests of the server.

use super::Mcp;
use super::denials::Target;
use super::policies::check_latch;
use super::ruling::record;
use crate::contract::{Container, Effect, Flow, Frame, FrameKind, Verdict};
use crate::json::Members;

/// Whether a client's request or notification may carry text of the client: true for every method
/// that is not listed here. Methods are compared exactly, since an extension may define any other
/// method, such as `com.example/list`.
pub(super) fn carries_text(frame: &Frame) -> bool {
    match &*frame.method {
        "tools/list"
        | "prompts/list"
        | "resources/list"
        | "resources/templates/list"
        | "initialize"
        | "ping"
        | "server/discover"
        | "logging/setLevel"
        | "resources/unsubscribe"
        | "notifications/cancelled" => false,
        "subscriptions/listen" => names_resources(frame),
        _ => true,
    }
}

/// Whether a subscription names resources. True if the params cannot be read.
fn names_resources(frame: &Frame) -> bool {
    let Some(params) = frame.params() else {
        return false;
    };
    let Ok(params) = Members::read(params) else {
        return true;
    };
    match params.members("notifications") {
        Ok(filter) => filter.is_some_and(|filter| {
            let uris = filter.get("resourceSubscriptions");
            uris.is_some_and(|uris| uris != "[]" && uris != "null")
        }),
        Err(_) => true,
    }
}

impl Mcp {
    /// Denies a client's request, notification or answer if the container's level excludes the open
    /// world and the server may reach the open world. Also denies a request or an answer if the
    /// abort latch is set.
    pub(super) fn admit_text(
        &self,
        flow: &mut Flow,
        frame: &Frame,
        container: &Container,
        target: &Target,
    ) -> Verdict {
        if frame.kind != FrameKind::Notification {
            check_latch(flow, container, target)?;
        }
        let level = container.level();
        let tools = frame.tools.as_deref().unwrap_or_default();
        let is_closed = || {
            let settings = &self.settings;
            settings.is_closed_world(&target.server, &container.id, tools)
        };
        if !level.excludes_open_world() || is_closed() {
            return Ok(());
        }
        let level = level.as_str();
        let reason = format!(
            "the server reaches the open world, and the container's security level is {level}"
        );
        record(flow, Effect::DenyContinue, &reason);
        let hint = "set annotations: { openWorldHint: false } under overrides in mcp.yaml for each tool of the server if none reaches the open world";
        Err(target.deny(&reason).rule("security level").hint(hint))
    }
}
