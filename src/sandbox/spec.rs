//! The specification of a sandbox: the command, and the files that it sees.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The specification of a sandbox, sent to PID 1 as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Spec {
    pub hostname: String,
    /// The visible files besides /dev and /proc, applied in order: later entries may lie inside
    /// earlier ones. No other file of the machine is visible.
    pub files: Vec<Entry>,
    pub command: Command,
    /// The pseudo-terminal for those of the command's streams that are terminals outside; `None` if
    /// no stream is a terminal.
    pub terminal: Option<Terminal>,
    /// Whether the command may make Unix sockets other than connected pairs.
    pub unix_sockets: bool,
    /// Limits besides those of every sandbox.
    pub limits: Option<Limits>,
}

/// Limits on the processes of a command.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The most private memory of each process, in bytes.
    pub memory: u64,
    /// The number of processors that all processes together may use.
    pub cpus: usize,
}

/// An entry of the file system. Paths are absolute, as the command sees them, and contain no
/// symbolic link. `from` is a path outside.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Entry {
    /// An empty writable directory in memory, deleted with the sandbox.
    Scratch { at: PathBuf, mode: u32 },
    /// A file with this text. It is writable in a scratch directory only.
    File { at: PathBuf, text: String },
    /// A symbolic link.
    Link { at: PathBuf, to: PathBuf },
    /// A bind mount of a file or directory from outside, with its submounts.
    Bind {
        from: PathBuf,
        at: PathBuf,
        access: Access,
    },
    /// A file or directory of the sandbox, bind-mounted over itself, so that it can be neither
    /// renamed nor removed. A symbolic link in the path is an error.
    Pin { at: PathBuf, access: Access },
    /// An empty read-only file or directory mounted over an existing one. Has no effect if the path
    /// does not exist. A symbolic link in the path is an error.
    Hide { at: PathBuf },
    /// A read-only file with this text, mounted over an existing one.
    Replace { at: PathBuf, text: String },
    /// A symbolic link, mounted over an existing file, so that the link can be neither renamed nor
    /// removed. Programs that follow it read and replace its target instead of the file.
    Redirect { at: PathBuf, to: PathBuf },
}

/// Access to a bind mount. The mount is always `nosuid` and `nodev`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Access {
    ReadOnly,
    Writable,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Command {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: PathBuf,
    /// Text of the error if the program is not found. For a sandbox, it says how to make the
    /// program visible.
    pub if_missing: String,
}

/// The pseudo-terminal of a sandbox.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Terminal {
    /// Which of standard input, output and error the pseudo-terminal replaces.
    pub streams: [bool; 3],
    pub rows: u16,
    pub columns: u16,
    /// Whether the terminal outside is in raw mode, so that the pseudo-terminal handles echo, line
    /// editing and signals.
    pub interactive: bool,
}
