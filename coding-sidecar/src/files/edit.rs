use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/edit`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditRequest {
    /// Relative to the root, or absolute below it.
    pub path: String,
    /// Text that occurs exactly once in the file.
    pub old_text: String,
    /// Text that takes its place.
    pub new_text: String,
}

/// The result of `/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EditResult {
    /// Always true.
    pub ok: bool,
    /// The path of the request.
    pub path: String,
    /// The change as a unified diff.
    pub diff: String,
}

/// Replaces a text that occurs exactly once in a file.
pub fn edit(
    _workspace: &Workspace,
    request: EditRequest,
    work: &Work,
) -> Result<EditResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
