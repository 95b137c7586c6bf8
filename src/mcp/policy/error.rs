//! Errors of loading a policy and of evaluating it.

use std::io;

use thiserror::Error;

/// Why a bundle or a command could not be loaded. The text names the reason and, if a single file
/// is at fault, that file.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file or directory cannot be read: its path and the I/O error.
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, io::Error),
    /// The path names neither a directory nor a regular file.
    #[error("{0} is neither a directory nor a bundle.tar.gz")]
    NoBundle(String),
    /// The file is damaged, or is not a gzipped tar archive.
    #[error("the archive cannot be read: {0}; `opa build` writes a gzipped tar archive")]
    Archive(io::Error),
    /// A path leads out of the bundle or is not UTF-8.
    #[error("{0:?}: the path leads out of the bundle or is not UTF-8")]
    Path(String),
    /// The bundle contains a link, a device, a pipe or a socket.
    #[error("{0} is not a regular file; a bundle cannot contain links")]
    NotRegular(String),
    /// Two entries of the archive have the same path.
    #[error("{0} is in the archive twice")]
    Twice(String),
    /// A file or directory is nested too deeply: its path and the limit.
    #[error("{0} is nested more than {1} directories deep")]
    TooDeep(String, usize),
    /// The bundle has more files and directories than this limit.
    #[error("the bundle has more than {0} files and directories")]
    TooMany(usize),
    /// The files together have more bytes than this limit.
    #[error("the bundle has more than {0} bytes unpacked")]
    TooLarge(u64),
    /// The content of a file is refused: the path of the file, and a text that names the reason and
    /// may name the change to make.
    #[error("{0}: {1}")]
    File(String, String),
    /// regorus refused the policies or the data, or the first evaluation failed or took too long.
    /// The errors of regorus name file, line and column.
    #[error("{0}")]
    Policy(String),
    /// The policy that people set cannot be read: its path and the reason.
    #[error(
        "{0}, the policy that people set, cannot be read: {1}; restore it from a backup, or return to \
         the bundle with: unified-proxy mcp policy reset"
    )]
    Stored(String, io::Error),
    /// The policy that people set replaces a bundle that is not editable: the id of the bundle.
    #[error(
        "people set a policy in place of the bundle {0:?}, which policies.editable does not name: set \
         `editable: {0}`, or return to the bundles of mcp.yaml with: unified-proxy mcp policy reset"
    )]
    Orphaned(String),
    /// The bundle has no policy.
    #[error("the bundle has no .rego file")]
    Empty,
    /// There is no rule at the entrypoint: the configured path, and the path in Rego's syntax.
    #[error(
        "entrypoint {0}: the bundle has neither a rule data.{1} nor a rule data.{1}.decision; \
         name the package that holds the rule `decision`"
    )]
    NoEntrypoint(String, String),
    /// The program of a command cannot be started with its settings. The text says why, and what to
    /// change.
    #[error("{0}")]
    Program(String),
    /// The entrypoint is not a path.
    #[error("entrypoint {0:?} is not a path such as mcp/authz")]
    Entrypoint(String),
}

/// Why a policy gave no valid answer.
#[derive(Debug, PartialEq, Eq)]
pub enum EvaluationError {
    /// The evaluation exceeded its time limit and was aborted.
    TimedOut,
    /// The evaluation failed. Only the operator gets the error, since it may contain lines of the
    /// policy.
    Failed(String),
    /// The value of the entrypoint is not a valid answer.
    Answer(String),
}
