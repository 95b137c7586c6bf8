//! `write`: replaces or creates a file.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::{Parents, Workspace};

/// The body of `/write`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteRequest {
    /// The path of the file, relative to the root or absolute below it.
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
    /// The number of bytes written.
    pub bytes: u64,
}

/// Replaces a file atomically, or creates it with its parent folders.
///
/// The new file has the mode of the replaced one and, if the system permits, its owner. If the
/// owner cannot be kept, the set-user-ID and set-group-ID bits are dropped. Extended attributes and
/// ACLs are not copied. Hard links to the replaced file keep the old content.
pub fn write(
    workspace: &Workspace,
    request: WriteRequest,
    work: &Work,
) -> Result<WriteResult, Failure> {
    work.check()?;
    let path = workspace.path(&request.path)?;
    let target = workspace.target(&path, Parents::Make, work)?;
    let replaced = target.existing()?;
    target
        .stage(request.content.as_bytes(), replaced.as_ref(), work)?
        .replace()?;
    Ok(WriteResult {
        ok: true,
        bytes: request.content.len() as u64,
        path: request.path,
    })
}
