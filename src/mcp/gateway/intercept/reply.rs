//! The bodies of answers, in each dialect.

use std::borrow::Cow;

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
    /// Claude Code before it calls a tool.
    PreToolUse,
    /// Claude Code after it has called a tool.
    PostToolUse,
    /// Another event of Claude Code, or one that cannot be read.
    UnknownHook,
}

/// An answer.
pub enum Said<'r> {
    /// What the caller sent passes, and no policy was asked.
    Unchanged,
    Passed {
        /// Whether a person approved the call.
        is_approved: bool,
        metadata: Option<Box<RawValue>>,
    },
    /// It passes with these arguments, or with this result.
    Modified {
        data: Box<RawValue>,
        metadata: Option<Box<RawValue>>,
    },
    Block(&'r str),
}

impl Said<'_> {
    /// The label of the metrics.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Unchanged | Self::Passed { .. } => "pass",
            Self::Modified { .. } => "modify",
            Self::Block(_) => "block",
        }
    }
}

impl Dialect {
    pub fn is_hook(self) -> bool {
        matches!(
            self,
            Self::PreToolUse | Self::PostToolUse | Self::UnknownHook
        )
    }

    /// Denies what the dialect cannot say: the caller would go on without the change.
    pub fn check(self, said: &Said<'_>, is_response: bool) -> Result<(), Denial> {
        let Said::Modified { data, .. } = said else {
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
            Self::PostToolUse | Self::UnknownHook => {
                "a policy changes the result, and a hook cannot pass changes on"
            }
        };
        let denial = Denial::new(
            Code::PolicyDeniedContinue,
            format!("Denied by policy: {why}"),
        );
        Err(denial.with("reason", why))
    }
}

/// The body of an answer; `None` if the answer is nothing.
pub fn body(dialect: Dialect, said: &Said<'_>) -> Option<Bytes> {
    let text: Cow<'_, str> = match (dialect, said) {
        (Dialect::Structured | Dialect::Docker, Said::Block(reason)) => block(reason).into(),
        (Dialect::Docker, Said::Modified { data, .. }) => data.get().into(),
        (Dialect::Docker, Said::Unchanged | Said::Passed { .. }) => return None,
        (Dialect::Structured, Said::Unchanged) => action("pass", None, None).into(),
        (Dialect::Structured, Said::Passed { metadata, .. }) => {
            action("pass", None, metadata.as_deref()).into()
        }
        (Dialect::Structured, Said::Modified { data, metadata }) => {
            action("modify", Some(data), metadata.as_deref()).into()
        }
        (_, Said::Block(reason)) => hook_block(dialect, reason).into(),
        (
            Dialect::PreToolUse,
            Said::Passed {
                is_approved: true, ..
            },
        ) => pre_tool_use(&[("permissionDecision", "\"allow\"")]).into(),
        (Dialect::PreToolUse, Said::Modified { data, .. }) => pre_tool_use(&[
            ("permissionDecision", "\"allow\""),
            ("updatedInput", data.get()),
        ])
        .into(),
        (_, Said::Unchanged | Said::Passed { .. } | Said::Modified { .. }) => "{}".into(),
    };
    Some(Bytes::from(text.into_owned()))
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

/// The one body of every block that is not for a hook: each dialect reads it as a denial.
fn block(reason: &str) -> String {
    let mut object = ObjectText::default();
    object.text("action", "block");
    object.text("reason", reason);
    let text = json!([{ "type": "text", "text": reason }]);
    object.member("content", &text.to_string());
    object.member("isError", "true");
    object.member("_meta", &json!({ CODE_KEY: BLOCK_CODE }).to_string());
    object.end()
}

fn hook_block(dialect: Dialect, reason: &str) -> String {
    let quoted = quote(reason);
    let deny = [
        ("permissionDecision", "\"deny\""),
        ("permissionDecisionReason", &*quoted),
    ];
    let post = || {
        let mut object = ObjectText::default();
        object.text("decision", "block");
        object.text("reason", reason);
        object
    };
    match dialect {
        Dialect::PreToolUse => pre_tool_use(&deny),
        Dialect::PostToolUse => post().end(),
        _ => {
            let mut object = post();
            object.member("hookSpecificOutput", &pre_tool_use_output(&deny));
            object.end()
        }
    }
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
