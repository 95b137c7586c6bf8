use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/grep`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrepRequest {
    /// A regular expression in the syntax of ripgrep, or a text where `literal` is set.
    pub pattern: String,
    /// The folder or file to search; the root where absent.
    #[serde(default)]
    pub path: Option<String>,
    /// Only files that match this glob; those that do not where it begins with `!`.
    #[serde(default)]
    pub glob: Option<String>,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    pub ignore_case: bool,
    /// Whether `pattern` is plain text.
    #[serde(default)]
    pub literal: bool,
    /// Lines to show before and after each match.
    #[serde(default)]
    pub context: Option<u64>,
    /// Most matching lines; 100 where absent.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// What is to be known about an incomplete [`GrepResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepDetails {
    /// Present when the bounds of an answer cut `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<crate::truncation::Truncation>,
    /// The limit, when more lines match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_limit_reached: Option<u64>,
    /// True when a line was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_truncated: Option<bool>,
    /// Present when files or folders could not be searched: how many, and the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The result of `/grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrepResult {
    /// `path:line: text` for a match, `path-line- text` for its context.
    pub content: String,
    /// Present when `content` is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<GrepDetails>,
}

/// Searches the lines of the files below a folder.
pub fn grep(
    _workspace: &Workspace,
    request: GrepRequest,
    work: &Work,
) -> Result<GrepResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
