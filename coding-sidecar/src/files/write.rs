use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/write`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteRequest {
    /// Relative to the root, or absolute below it.
    pub path: String,
    /// The whole new content.
    pub content: String,
}

/// The result of `/write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// Always true.
    pub ok: bool,
    /// The path of the request.
    pub path: String,
    /// Bytes written.
    pub bytes: u64,
}

/// Replaces a file atomically, or makes it with its parent folders.
pub fn write(
    _workspace: &Workspace,
    request: WriteRequest,
    work: &Work,
) -> Result<WriteResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
