//! Why a file operation failed, in words for the client.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// A failed file operation. The displayed text is the answer's `error`.
#[derive(Debug, Error)]
pub enum Failure {
    /// A field of the request has a value that no state of the files could make valid.
    #[error("{0}")]
    Request(String),
    /// The named object cannot be used as the request asks: absent, outside the root, of another kind.
    #[error("{path}: {reason}")]
    Path {
        /// The path as the request named it.
        path: String,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// The system refused a step for a reason that the request did not cause.
    #[error("{path}: cannot {action}: {source}")]
    System {
        /// The path as the request named it.
        path: String,
        /// The step, as an infinitive: `read`, `replace the file`.
        action: &'static str,
        /// What the system answered.
        source: io::Error,
    },
    /// The caller went away.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The operation reached its deadline.
    #[error("the operation took longer than its time limit; name a smaller part of the files")]
    DeadlinePassed,
}

impl Failure {
    /// The object at `path` cannot be used; `reason` says why and what to do.
    pub(crate) fn path(path: &str, reason: impl Into<String>) -> Self {
        Self::Path {
            path: shown(path),
            reason: reason.into(),
        }
    }

    /// The system refused to `action` the object at `path`.
    ///
    /// Errors that the named path explains become [`Failure::Path`].
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

/// What an error number of `openat2` and its kin says about the path that was named.
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

/// [`explained`], or what the system calls the error.
pub(crate) fn reason(error: Errno) -> String {
    explained(error).map_or_else(|| error.to_string(), str::to_owned)
}

/// Most bytes of a path that an error repeats.
const SHOWN_BYTES_MAX: usize = 300;

/// `path` without control characters and at most [`SHOWN_BYTES_MAX`] bytes long.
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

/// `text` with its control characters escaped, so that it stays on one line.
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
