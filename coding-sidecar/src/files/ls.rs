use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/ls`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LsRequest {
    /// The folder; the root where absent.
    #[serde(default)]
    pub path: Option<String>,
    /// Most entries; 500 where absent.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// The result of `/ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LsResult {
    /// One entry on each line; a folder ends with `/`.
    pub output: String,
    /// Present when entries are missing from `output`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<crate::truncation::Truncation>,
}

/// Lists a folder in alphabetical order.
pub fn ls(_workspace: &Workspace, request: LsRequest, work: &Work) -> Result<LsResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
