//! The bodies of answers, in each dialect.

use addons::contract::{Code, Denial};
use addons::json::{Members, ObjectText};
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;

use super::super::super::core::quote;

/// The code of every block in `_meta`.
pub const BLOCK_CODE: i64 = -32951;
/// The key of [`BLOCK_CODE`].
pub const CODE_KEY: &str = "unified-proxy/code";

/// The language of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Structured,
    /// Docker's MCP Gateway.
    Docker,
    /// Claude Code before it calls a tool, or its event is not known.
    PreToolUse,
    /// Claude Code after it has called a tool.
    PostToolUse,
}

/// An answer that lets a request or response pass.
pub struct Said {
    /// Replaces the arguments, or the result.
    pub modified: Option<Box<RawValue>>,
    pub metadata: Option<Box<RawValue>>,
    /// Whether a person approved the call.
    pub is_approved: bool,
}

impl Said {
    /// The label of the metrics.
    pub fn action(&self) -> &'static str {
        match self.modified {
            None => "pass",
            Some(_) => "modify",
        }
    }
}

impl Dialect {
    pub fn is_hook(self) -> bool {
        matches!(self, Self::PreToolUse | Self::PostToolUse)
    }

    /// Denies what the dialect cannot say: the caller would go on without the change.
    pub fn check(self, said: &Said, is_response: bool) -> Result<(), Denial> {
        let Some(data) = &said.modified else {
            return Ok(());
        };
        let has_content = || {
            let members = Members::read(data);
            members.is_ok_and(|members| members.get("content").is_some())
        };
        let why = match self {
            Self::Structured | Self::PreToolUse => return Ok(()),
            Self::Docker if is_response && has_content() => return Ok(()),
            Self::Docker if is_response => "the policy's result has no `content`",
            Self::Docker => {
                "a policy changes the arguments, and this gateway cannot pass changes on"
            }
            Self::PostToolUse => "a policy changes the result, and a hook cannot pass changes on",
        };
        let denial = Denial::new(
            Code::PolicyDeniedContinue,
            format!("Denied by policy: {why}"),
        );
        Err(denial.with("reason", why))
    }
}

/// The body of an answer that lets something pass; `None` if the answer is nothing.
pub fn pass(dialect: Dialect, said: &Said) -> Option<Bytes> {
    let modified = said.modified.as_deref();
    let text = match (dialect, modified) {
        (Dialect::Structured, _) => action(said.action(), modified, said.metadata.as_deref()),
        (Dialect::Docker, modified) => modified?.get().to_owned(),
        (Dialect::PreToolUse, Some(input)) => {
            // The word "allow" would suppress the question that Claude Code itself has for its user.
            let decision = match said.is_approved {
                true => "\"allow\"",
                false => "\"ask\"",
            };
            let output = [
                ("permissionDecision", decision),
                ("updatedInput", input.get()),
            ];
            pre_tool_use(&output)
        }
        (Dialect::PreToolUse, None) if said.is_approved => {
            pre_tool_use(&[("permissionDecision", "\"allow\"")])
        }
        (Dialect::PreToolUse | Dialect::PostToolUse, _) => "{}".to_owned(),
    };
    Some(Bytes::from(text))
}

fn action(action: &str, data: Option<&RawValue>, metadata: Option<&RawValue>) -> String {
    let mut object = ObjectText::default();
    object.text("action", action);
    if let Some(data) = data {
        object.member("modified_data", data.get());
    }
    if let Some(metadata) = metadata {
        object.member("metadata", metadata.get());
    }
    object.end()
}

/// The body of every block, which Docker's gateway and the structured dialect read as a denial. For
/// hooks, it has the members that they read, too; for a `PostToolUse`, without the output of another
/// event.
pub fn block(dialect: Dialect, reason: &str) -> Bytes {
    let mut object = ObjectText::default();
    object.text("action", "block");
    object.text("reason", reason);
    let text = json!([{ "type": "text", "text": reason }]);
    object.member("content", &text.to_string());
    object.member("isError", "true");
    object.member("_meta", &json!({ CODE_KEY: BLOCK_CODE }).to_string());
    if dialect.is_hook() {
        object.text("decision", "block");
    }
    if dialect == Dialect::PreToolUse {
        let output = pre_tool_use_output(&[
            ("permissionDecision", "\"deny\""),
            ("permissionDecisionReason", &quote(reason)),
        ]);
        object.member("hookSpecificOutput", &output);
    }
    Bytes::from(object.end())
}

fn pre_tool_use(members: &[(&str, &str)]) -> String {
    let mut object = ObjectText::default();
    object.member("hookSpecificOutput", &pre_tool_use_output(members));
    object.end()
}

fn pre_tool_use_output(members: &[(&str, &str)]) -> String {
    let mut output = ObjectText::default();
    output.text("hookEventName", "PreToolUse");
    for (key, value) in members {
        output.member(key, value);
    }
    output.end()
}
