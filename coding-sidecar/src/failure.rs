//! Errors of file operations, with texts for the client.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// The error of a file operation. Its text is the field `error` of the response.
#[derive(Debug, Error)]
pub enum Failure {
    /// A field of the request is invalid, independently of the files.
    #[error("{0}")]
    Request(String),
    /// The named file or folder cannot be used: for example, it is missing, outside of the root or
    /// of another kind.
    #[error("{path}: {reason}")]
    Path {
        /// The path as the request named it, escaped and, if it is long, cut.
        path: String,
        /// The reason and, if there is one, the remedy.
        reason: String,
    },
    /// A system call failed with an unexpected error number.
    #[error("{path}: cannot {action}: {source}")]
    System {
        /// The path as the request named it, escaped and, if it is long, cut.
        path: String,
        /// The step that failed, as an infinitive: `read`, `replace the file`.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The operation was cancelled, usually because its client closed the connection.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The operation reached its deadline.
    #[error("the operation took longer than its time limit; name a smaller part of the files")]
    DeadlinePassed,
}

impl Failure {
    /// The failure for a file or folder that cannot be used, for this reason.
    pub(crate) fn path(path: &str, reason: impl Into<String>) -> Self {
        Self::Path {
            path: shown(path),
            reason: reason.into(),
        }
    }

    /// The failure of a system call, during the step `action`. Error numbers that [`explained`]
    /// knows become a [`Failure::Path`], others a [`Failure::System`].
    pub(crate) fn system(path: &str, action: &'static str, error: impl Into<io::Error>) -> Self {
        let source = error.into();
        match Errno::from_io_error(&source).and_then(explained) {
            Some(reason) => Self::path(path, reason),
            None => Self::System {
                path: shown(path),
                action,
                source,
            },
        }
    }
}

/// The reason for an error number of a file system call, in words for the client that named the
/// path; `None` for an unexpected number.
fn explained(error: Errno) -> Option<&'static str> {
    Some(match error {
        Errno::NOENT => "no such file or folder",
        Errno::XDEV => {
            "outside the workspace: `..` or a symbolic link leaves the root, or a symbolic link is absolute"
        }
        Errno::LOOP => "too many symbolic links, or a link of /proc, which is not followed",
        Errno::NOTDIR => "a part of the path is a file where a folder is expected",
        Errno::ISDIR => "a folder, not a file",
        Errno::NAMETOOLONG => "the path or one of its names is too long",
        Errno::ACCESS | Errno::PERM => "permission denied",
        Errno::ROFS => "the file system is read-only",
        Errno::NOSPC | Errno::DQUOT => "no space left",
        Errno::BUSY => "a mount point or in use; it cannot be replaced",
        Errno::AGAIN => "folders on this path were renamed again and again; try again",
        _ => return None,
    })
}

/// The reason for an error number: [`explained`], or else the system's text.
pub(crate) fn reason(error: Errno) -> String {
    explained(error).map_or_else(|| error.to_string(), str::to_owned)
}

/// The most bytes of a path that an error quotes.
const SHOWN_BYTES_MAX: usize = 300;

/// The first [`SHOWN_BYTES_MAX`] bytes of a path, with control characters escaped. A longer path
/// ends with an ellipsis.
fn shown(path: &str) -> String {
    let cut = path
        .get(..path.floor_char_boundary(SHOWN_BYTES_MAX))
        .unwrap_or_default();
    let mut shown = printable(cut);
    if cut.len() < path.len() {
        shown.push('…');
    }
    shown
}

/// Escapes the control characters of a text, so that it stays on one line.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}
