//! `read`: returns lines of a text file, or an image.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr;
use serde::{Deserialize, Serialize};

use super::image;
use super::lines::LineRange;
use crate::failure::Failure;
use crate::fields::count;
use crate::truncation::{HeadCut, OUTPUT_LINES_MAX, Truncation};
use crate::work::Work;
use crate::workspace::{CHUNK_BYTES, OpenFile, Workspace, WorkspacePath};

/// The number of bytes at the start of a file that decide whether it is an image.
const HEAD_BYTES: usize = 8 * 1024;
/// The most bytes of an image: 4 MiB, 5.6 MB in base64. Language models refuse larger images.
const IMAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The body of `/read`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadRequest {
    /// The path of the file, relative to the root or absolute below it.
    pub path: String,
    /// The first line, counted from 1; 1 by default.
    #[serde(default, deserialize_with = "count")]
    pub offset: Option<u64>,
    /// The most lines; by default, as many as the bounds of a result permit.
    #[serde(default, deserialize_with = "count")]
    pub limit: Option<u64>,
}

/// The result of `/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ReadResult {
    /// Lines of a text file, with their line ends.
    Text {
        /// The lines, with U+FFFD in place of invalid UTF-8.
        content: String,
        /// The number of lines of the whole file.
        total_lines: u64,
        /// Whether lines follow `content`.
        has_more: bool,
        /// Present if the bounds of a result cut `content`.
        #[serde(skip_serializing_if = "Option::is_none")]
        truncation: Option<Truncation>,
    },
    /// A PNG, JPEG, GIF or WebP image.
    Image {
        /// The file in base64.
        data: String,
        /// The MIME type, for example `image/png`.
        mime_type: String,
    },
}

/// Reads lines of a text file, or an image.
///
/// Reads a text file in pieces, so that memory does not depend on its size. Reads it to its end,
/// even if only some lines are requested, since the result has the number of all lines.
pub fn read(
    workspace: &Workspace,
    request: ReadRequest,
    work: &Work,
) -> Result<ReadResult, Failure> {
    work.check()?;
    let path = workspace.path(&request.path)?;
    let range = LineRange::new(request.offset, request.limit)?;
    let mut open = workspace.file(&path)?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut open.file)
        .take(HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(|error| Failure::system(path.requested(), "read", error))?;
    match image::mime_type(&head) {
        Some(mime_type) => read_image(open, head, mime_type, &path, work),
        None => read_text(open, &head, range, &path, work),
    }
}

fn read_image(
    mut open: OpenFile,
    mut image: Vec<u8>,
    mime_type: &str,
    path: &WorkspacePath,
    work: &Work,
) -> Result<ReadResult, Failure> {
    work.check()?;
    let rest = (IMAGE_BYTES_MAX.saturating_add(1)).saturating_sub(image.len());
    (&mut open.file)
        .take(rest as u64)
        .read_to_end(&mut image)
        .map_err(|error| Failure::system(path.requested(), "read", error))?;
    if image.len() > IMAGE_BYTES_MAX {
        let reason =
            format!("an {mime_type} of more than {IMAGE_BYTES_MAX} bytes; make it smaller");
        return Err(Failure::path(path.requested(), reason));
    }
    Ok(ReadResult::Image {
        data: STANDARD.encode(&image),
        mime_type: mime_type.to_owned(),
    })
}

fn read_text(
    mut open: OpenFile,
    head: &[u8],
    mut range: LineRange,
    path: &WorkspacePath,
    work: &Work,
) -> Result<ReadResult, Failure> {
    refuse_binary(head, 0, path)?;
    let mut cut = HeadCut::new(OUTPUT_LINES_MAX);
    cut.take(range.select(head));
    let mut position = head.len() as u64;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        work.check().map_err(|failure| too_slow(failure, path))?;
        let count = open
            .file
            .read(&mut chunk)
            .map_err(|error| Failure::system(path.requested(), "read", error))?;
        let Some(read) = chunk.get(..count).filter(|read| !read.is_empty()) else {
            break;
        };
        let selected = range.select(read);
        if !cut.is_cut() {
            refuse_binary(selected, position, path)?;
        }
        cut.take(selected);
        position = position.saturating_add(count as u64);
    }
    let total_lines = range.total_lines();
    if range.begins_after(total_lines) {
        return Err(Failure::path(
            path.requested(),
            format!(
                "offset {} is beyond the last of its {total_lines} lines",
                range.first()
            ),
        ));
    }
    let cut = cut.finish();
    let shown_up_to = range
        .first()
        .saturating_sub(1)
        .saturating_add(cut.output_lines);
    Ok(ReadResult::Text {
        content: cut.content.clone(),
        total_lines,
        has_more: shown_up_to < total_lines,
        truncation: cut.if_cut(),
    })
}

/// Replaces [`Failure::DeadlinePassed`] by a failure with advice for large files.
fn too_slow(failure: Failure, path: &WorkspacePath) -> Failure {
    match failure {
        Failure::DeadlinePassed => Failure::path(
            path.requested(),
            "too large to count its lines within the time limit; \
             read a part of it with bash, for example: head, tail, sed -n '100,200p;200q'",
        ),
        other => other,
    }
}

/// Fails if the text has a NUL byte, as in programs, archives and UTF-16. `position` is the offset
/// of `text` in the file.
fn refuse_binary(text: &[u8], position: u64, path: &WorkspacePath) -> Result<(), Failure> {
    let Some(nul) = memchr(0, text) else {
        return Ok(());
    };
    let nul = position.saturating_add(nul as u64);
    let reason = format!(
        "a binary file (NUL at byte {nul}) that is not a PNG, JPEG, GIF or WebP image; \
         use bash with a program for its format"
    );
    Err(Failure::path(path.requested(), reason))
}
