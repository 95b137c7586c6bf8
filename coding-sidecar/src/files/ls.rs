//! `ls`: lists the entries of a folder.

use std::collections::BinaryHeap;

use rustix::fs::{Dir, DirEntry, FileType};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, printable};
use crate::fields::{count, limit};
use crate::truncation::{HeadCut, OUTPUT_LINES_MAX, Truncation};
use crate::work::Work;
use crate::workspace::{Workspace, WorkspacePath};

/// The most entries if the request has no limit.
const LIMIT_DEFAULT: u64 = 500;
/// The number of entries that are read between two checks of [`Work`].
const ENTRIES_BETWEEN_CHECKS: u64 = 512;

/// The body of `/ls`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LsRequest {
    /// The path of the folder; the root by default.
    #[serde(default)]
    pub path: Option<String>,
    /// The maximum number of entries: from 1; more than 2,000 counts as 2,000; 500 by default.
    #[serde(default, deserialize_with = "count")]
    pub limit: Option<u64>,
}

/// The result of `/ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LsResult {
    /// One entry on each line; a folder ends with `/`.
    pub output: String,
    /// Present if entries are missing from `output`. Its totals count the whole folder. The `/`
    /// after a link to a folder is counted only for the first entries, up to the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,
}

/// Lists the entries of a folder, including hidden ones, sorted by the bytes of their names.
///
/// Memory depends on the limit, not on the number of entries.
pub fn ls(workspace: &Workspace, request: LsRequest, work: &Work) -> Result<LsResult, Failure> {
    work.check()?;
    let path = workspace.path(request.path.as_deref().unwrap_or("."))?;
    let limit = limit(request.limit, LIMIT_DEFAULT)?;
    let failed = |error| Failure::system(path.requested(), "list the folder", error);
    let mut folder = Dir::new(workspace.folder(&path)?).map_err(failed)?;
    let mut first: BinaryHeap<(Vec<u8>, Kind)> = BinaryHeap::new();
    let (mut total, mut total_bytes) = (0_u64, 0_u64);
    while let Some(entry) = folder.read() {
        if total.is_multiple_of(ENTRIES_BETWEEN_CHECKS) {
            work.check()?;
        }
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        total = total.saturating_add(1);
        let kind = Kind::of(&entry);
        total_bytes = total_bytes.saturating_add(line_bytes(name, kind));
        if first.len() < limit || first.peek().is_some_and(|(last, _)| name < last.as_slice()) {
            first.push((name.to_vec(), kind));
        }
        if first.len() > limit {
            first.pop();
        }
    }
    let mut cut = HeadCut::new(OUTPUT_LINES_MAX);
    let (mut left_out, mut left_out_bytes) = (total, total_bytes);
    for (name, kind) in first.into_sorted_vec() {
        left_out = left_out.saturating_sub(1);
        left_out_bytes = left_out_bytes.saturating_sub(line_bytes(&name, kind));
        let mark = if is_folder(workspace, &path, &name, kind) {
            "/"
        } else {
            ""
        };
        cut.take_line(&(shown(&name) + mark));
    }
    cut.leave_out_lines(left_out, left_out_bytes);
    let cut = cut.finish();
    Ok(LsResult {
        output: cut.content.clone(),
        truncation: cut.if_cut(),
    })
}

/// Formats an entry's name: U+FFFD for invalid UTF-8, control characters escaped.
fn shown(name: &[u8]) -> String {
    printable(&String::from_utf8_lossy(name))
}

/// The number of bytes of an entry's line. Does not count the `/` after an entry of
/// [`Kind::Look`], since this function does not open the entry.
fn line_bytes(name: &[u8], kind: Kind) -> u64 {
    let mark = u64::from(kind == Kind::Folder);
    (shown(name).len() as u64)
        .saturating_add(mark)
        .saturating_add(1)
}

/// An entry's kind, according to the listing of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Folder,
    Other,
    /// A symbolic link, or an entry whose kind the file system does not return: it must be opened
    /// to find out whether it is a folder.
    Look,
}

impl Kind {
    fn of(entry: &DirEntry) -> Self {
        match entry.file_type() {
            FileType::Directory => Self::Folder,
            FileType::Symlink | FileType::Unknown => Self::Look,
            _ => Self::Other,
        }
    }
}

/// Whether an entry is a folder, or a link to a folder that may be opened.
fn is_folder(workspace: &Workspace, folder: &WorkspacePath, name: &[u8], kind: Kind) -> bool {
    match kind {
        Kind::Folder => true,
        Kind::Other => false,
        Kind::Look => workspace
            .kind_of(&[folder.relative(), b"/", name].concat())
            .is_ok_and(|kind| kind == FileType::Directory),
    }
}
