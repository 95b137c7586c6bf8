//! Why a file operation failed, in words for the client.

use std::io;

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
