use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/find`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FindRequest {
    /// A glob: matched with names, or with paths below `path` where it has a `/`.
    pub pattern: String,
    /// The folder to search; the root where absent.
    #[serde(default)]
    pub path: Option<String>,
    /// Most files; 1,000 where absent.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// The result of `/find`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindResult {
    /// Paths relative to the root.
    pub files: Vec<String>,
    /// Whether more files match.
    pub truncated: bool,
    /// The limit that applied.
    pub limit: u64,
    /// Present when the bounds of an answer cut the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<crate::truncation::Truncation>,
    /// Present when folders could not be read: how many, and the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// Finds the files below a folder whose names match a glob.
pub fn find(
    _workspace: &Workspace,
    request: FindRequest,
    work: &Work,
) -> Result<FindResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
