//! `edit`: replaces a text in a file.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr_iter;
use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use super::diff::unified_diff;
use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::{Parents, Workspace};

/// The most bytes of a file that is edited: a file with CRLF is in memory four times.
const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The body of `/edit`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditRequest {
    /// The path of the file, relative to the root or absolute below it.
    pub path: String,
    /// The text to replace, which must occur exactly once in the file.
    pub old_text: String,
    /// The replacement.
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
///
/// If all line ends of the file are CRLF, the texts may have LF or CRLF, and the result has CRLF.
/// Edits and writes of one file are serialised. The edit fails if another process writes to the
/// file between the read and the last check, just before the rename. A write after that check is
/// lost.
pub fn edit(
    workspace: &Workspace,
    request: EditRequest,
    work: &Work,
) -> Result<EditResult, Failure> {
    work.check()?;
    if request.old_text.is_empty() {
        return Err(Failure::Request(
            "oldText is empty; use write to make a file".into(),
        ));
    }
    if request.old_text == request.new_text {
        return Err(Failure::Request("oldText and newText are the same".into()));
    }
    let path = workspace.path(&request.path)?;
    let target = workspace.target(&path, Parents::Expect, work)?;
    if target.existing()?.is_none() {
        return Err(Failure::path(&request.path, "no such file or folder"));
    }
    let open = target.open(workspace)?;
    let stat = open.stat;
    let content = open
        .read_whole(&path, FILE_BYTES_MAX, work)?
        .ok_or_else(|| {
            let reason = format!("larger than {FILE_BYTES_MAX} bytes; use bash to change it");
            Failure::path(&request.path, reason)
        })?;
    let change = Change::new(&content, &request)?;
    let edited = change.apply();
    let staged = target.stage(&edited, Some(&stat), work)?;
    target.expect_unchanged(&stat)?;
    staged.replace()?;
    Ok(EditResult {
        ok: true,
        diff: unified_diff(
            &request.path,
            &change.text,
            change.range.clone(),
            change.new.as_bytes(),
        ),
        path: request.path,
    })
}

/// One replacement. If all line ends of the file are CRLF, `text` and `new` have LF.
struct Change<'a> {
    text: Cow<'a, [u8]>,
    range: Range<usize>,
    new: Cow<'a, str>,
    /// Whether the file has CRLF in place of each LF of `text`.
    crlf: bool,
}

impl<'a> Change<'a> {
    fn new(content: &'a [u8], request: &'a EditRequest) -> Result<Self, Failure> {
        let crlf = has_only_crlf(content);
        let (text, old, new) = if crlf {
            (
                Cow::Owned(without_cr(content)),
                Cow::Owned(request.old_text.replace("\r\n", "\n")),
                Cow::Owned(request.new_text.replace("\r\n", "\n")),
            )
        } else {
            (
                Cow::Borrowed(content),
                Cow::Borrowed(request.old_text.as_str()),
                Cow::Borrowed(request.new_text.as_str()),
            )
        };
        let start =
            only_match(&text, &old).map_err(|reason| Failure::path(&request.path, reason))?;
        Ok(Self {
            range: start..start.saturating_add(old.len()),
            text,
            new,
            crlf,
        })
    }

    fn apply(&self) -> Vec<u8> {
        let before = self.text.get(..self.range.start).unwrap_or_default();
        let after = self.text.get(self.range.end..).unwrap_or_default();
        let edited = [before, self.new.as_bytes(), after].concat();
        if self.crlf { with_cr(&edited) } else { edited }
    }
}

/// The offset of the only match of `old` in `text`; the error says why there is not exactly one.
fn only_match(text: &[u8], old: &str) -> Result<usize, String> {
    let finder = Finder::new(old);
    let Some(first) = finder.find(text) else {
        let reason = if old.contains('\n') && occurs_with_other_ends(text, old) {
            "oldText occurs with other line ends (CRLF or LF); use the exact text as read returns it"
        } else {
            "oldText does not occur in the file; it must match exactly, white space included"
        };
        return Err(reason.to_owned());
    };
    // Searches from the next byte on, since matches may overlap.
    let rest = first.saturating_add(1);
    match finder.find(text.get(rest..).unwrap_or_default()) {
        None => Ok(first),
        Some(second) => Err(format!(
            "oldText occurs more than once, first on lines {} and {}; \
             include more of the lines around the one to replace",
            line_number(text, first),
            line_number(text, second.saturating_add(rest))
        )),
    }
}

fn occurs_with_other_ends(text: &[u8], old: &str) -> bool {
    let old = old.replace("\r\n", "\n");
    Finder::new(&old).find(&without_cr(text)).is_some()
}

fn line_number(text: &[u8], position: usize) -> usize {
    let before = text.get(..position).unwrap_or_default();
    memchr_iter(b'\n', before).count().saturating_add(1)
}

/// Whether there is at least one LF, and a CR before each.
fn has_only_crlf(content: &[u8]) -> bool {
    let mut ends = memchr_iter(b'\n', content).peekable();
    ends.peek().is_some()
        && ends.all(|lf| {
            lf.checked_sub(1)
                .and_then(|before| content.get(before))
                .is_some_and(|byte| *byte == b'\r')
        })
}

/// Replaces each CRLF by LF.
fn without_cr(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len());
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\r\n") {
            Some(text) => {
                out.extend_from_slice(text);
                out.push(b'\n');
            }
            None => out.extend_from_slice(line),
        }
    }
    out
}

/// Replaces each LF by CRLF.
fn with_cr(text: &[u8]) -> Vec<u8> {
    let lines = memchr_iter(b'\n', text).count();
    let mut out = Vec::with_capacity(text.len().saturating_add(lines));
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(text) => {
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            None => out.extend_from_slice(line),
        }
    }
    out
}
