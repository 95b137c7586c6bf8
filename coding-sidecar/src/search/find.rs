//! `find`: finds files by a glob.

use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::walk::Walk;
use crate::failure::{Failure, printable};
use crate::fields::{count, limit};
use crate::truncation::{HeadCut, OUTPUT_LINES_MAX, Truncation};
use crate::work::Work;
use crate::workspace::Workspace;

/// The most files if the request has no limit.
const LIMIT_DEFAULT: u64 = 1_000;
/// The number of entries that are matched between two checks of [`Work`].
const ENTRIES_BETWEEN_CHECKS: u64 = 512;

/// The body of `/find`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FindRequest {
    /// A glob, which is matched against names or, if it contains a `/`, against paths relative to
    /// `path`.
    pub pattern: String,
    /// The folder to search; the root by default.
    #[serde(default)]
    pub path: Option<String>,
    /// The maximum number of files: from 1; more than 2,000 counts as 2,000; 1,000 by default.
    #[serde(default, deserialize_with = "count")]
    pub limit: Option<u64>,
}

/// The result of `/find`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FindResult {
    /// The paths relative to the root, with control characters escaped.
    pub files: Vec<String>,
    /// Whether more files match.
    pub truncated: bool,
    /// The limit that applied.
    pub limit: u64,
    /// Present if the bounds of a result cut the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
    /// The number of folders that were not searched, were searched only in part, or had ignore
    /// files that were too large or too complex to be applied; and the first of them, with the
    /// reason. A folder is not searched if it cannot be read or is nested too deep, or if too many
    /// folders already wait to be searched. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// Finds the entries below a folder that match a glob, except folders. Hidden files are included.
///
/// Entries that ignore files exclude are left out, and so is `.git`. Symbolic links are listed but
/// not followed.
pub fn find(
    workspace: &Workspace,
    request: FindRequest,
    work: &Work,
) -> Result<FindResult, Failure> {
    work.check()?;
    let filter = Filter::new(&request.pattern, "pattern")?;
    let limit = limit(request.limit, LIMIT_DEFAULT)?;
    let path = workspace.path(request.path.as_deref().unwrap_or("."))?;
    let mut walk = Walk::new(workspace, &path)?;
    let mut files = Vec::new();
    let mut truncated = false;
    let mut cut = HeadCut::new(OUTPUT_LINES_MAX);
    let mut seen: u64 = 0;
    while let Some(found) = walk.next(work)? {
        seen = seen.saturating_add(1);
        if seen.is_multiple_of(ENTRIES_BETWEEN_CHECKS) {
            work.check()?;
        }
        if !filter.accepts(&found.path) {
            continue;
        }
        if files.len() >= limit {
            truncated = true;
            break;
        }
        let shown = printable(&walk.shown(&found.path));
        if !cut.take_line(&shown) {
            truncated = true;
            break;
        }
        files.push(shown);
    }
    Ok(FindResult {
        files,
        truncated,
        limit: limit as u64,
        truncation: cut.finish().if_cut(),
        skipped: walk.skipped.describe(),
    })
}
