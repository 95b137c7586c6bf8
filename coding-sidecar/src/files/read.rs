use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::work::Work;
use crate::workspace::Workspace;

/// The body of `/read`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadRequest {
    /// Relative to the root, or absolute below it.
    pub path: String,
    /// First line, counted from 1.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Most lines.
    #[serde(default)]
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
        /// The lines; bytes that are not UTF-8 are shown as U+FFFD.
        content: String,
        /// Lines of the whole file.
        total_lines: u64,
        /// Whether lines follow after `content`.
        has_more: bool,
        /// Present when the bounds of an answer cut `content`.
        #[serde(skip_serializing_if = "Option::is_none")]
        truncation: Option<crate::truncation::Truncation>,
    },
    /// A PNG, JPEG, GIF or WebP image.
    Image {
        /// The file in base64.
        data: String,
        /// For example `image/png`.
        mime_type: String,
    },
}

/// Reads lines of a text file, or an image.
pub fn read(
    _workspace: &Workspace,
    request: ReadRequest,
    work: &Work,
) -> Result<ReadResult, Failure> {
    work.check()?;
    Err(Failure::Path {
        path: format!("{request:?}"),
        reason: "not there yet".into(),
    })
}
