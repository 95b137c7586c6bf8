//! Why a bundle is not loaded, or gives no answer.

use std::io;

use thiserror::Error;

/// Names the file, and what to change.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file or directory cannot be read.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// The path names neither a directory nor a file.
    #[error("{0} is neither a directory nor a bundle.tar.gz")]
    NoBundle(String),
    /// The archive is damaged or none.
    #[error("the archive cannot be read: {0}; `opa build` writes a gzipped tar archive")]
    Archive(io::Error),
    /// A name that leads out of the bundle, or is not UTF-8.
    #[error("{0:?}: the path leads out of the bundle or is not UTF-8")]
    Path(String),
    /// A link, a device, a pipe.
    #[error("{0} is not a regular file; a bundle holds no links")]
    NotRegular(String),
    /// An archive has a path twice.
    #[error("{0} is in the archive twice")]
    Twice(String),
    /// Over the bound of directories.
    #[error("{0} lies more than {1} directories deep")]
    TooDeep(String, usize),
    /// Over the bound of files.
    #[error("the bundle has more than {0} files and directories")]
    TooMany(usize),
    /// Over the bound of bytes.
    #[error("the bundle has more than {0} bytes unpacked")]
    TooLarge(u64),
    /// A file that is no JSON, no YAML, or not what its name says.
    #[error("{0}: {1}")]
    File(String, String),
    /// A policy or a document outside the roots of the manifest.
    #[error("{file}: {path} is outside the roots of .manifest: {roots}")]
    OutsideRoots {
        /// The file.
        file: String,
        /// The package or document.
        path: String,
        /// The roots, separated by commas.
        roots: String,
    },
    /// regorus does not accept the policies. It names file, line and column.
    #[error("{0}")]
    Policy(String),
    /// There is no policy at all.
    #[error("the bundle has no .rego file")]
    Empty,
    /// Nothing stands where the entrypoint points to.
    #[error(
        "entrypoint {0}: the bundle has neither a rule data.{1} nor a rule data.{1}.decision; \
         name the package that holds the rule `decision`"
    )]
    NoEntrypoint(String, String),
    /// The entrypoint is no path.
    #[error("entrypoint {0:?} is not a path such as mcp/authz")]
    Entrypoint(String),
    /// A rule that depends on itself.
    #[error("{0}: the rule {1} depends on itself; Rego has no recursion")]
    Recursion(String, String),
    /// A function whose result can take any amount of memory.
    #[error(
        "{file}: the result of {function} can take all memory; write {literals} of the call as a \
         literal"
    )]
    Unbounded {
        /// The file.
        file: String,
        /// The function.
        function: String,
        /// The arguments that must be literals.
        literals: String,
    },
    /// A function of that kind in the place of another one.
    #[error(
        "{0}: `with … as {1}`: the result of {1} can take all memory; replace the function by a \
         rule of the policy"
    )]
    Replacement(String, String),
    /// A function of time that is not there.
    #[error(
        "{0}: {1} does not exist here; calculate with time.now_ns(), nanoseconds since 1970 in UTC"
    )]
    Time(String, String),
}

/// Why a policy gave no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum EvaluationError {
    /// The time was up. The evaluation ended.
    TimedOut,
    /// The policy failed. The whole error is for the operator: it has lines of the policy.
    Failed(String),
    /// The policy's answer is none.
    Answer(String),
}
