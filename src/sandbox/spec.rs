//! What a sandbox is to be: the command, and what it sees.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A sandbox. Sent to PID 1 as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Spec {
    pub hostname: String,
    /// The tree, in order: later entries may lie inside earlier ones. Nothing else is visible.
    pub files: Vec<Entry>,
    pub command: Command,
    /// A pseudo-terminal for those of the command's streams that are one outside.
    pub terminal: Option<Terminal>,
}

/// One entry of the tree. Paths are absolute and as the command sees them, without links on the
/// way; `from` is a path outside.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Entry {
    /// A directory that can be written to and ends with the sandbox.
    Scratch { at: PathBuf, mode: u32 },
    /// A file with this text. It can be written to where it lies in a scratch directory.
    File { at: PathBuf, text: String },
    /// A symbolic link.
    Link { at: PathBuf, to: PathBuf },
    /// A file or directory from outside, with all that is mounted below it.
    Bind {
        from: PathBuf,
        at: PathBuf,
        access: Access,
    },
    /// A file or directory that the sandbox has already, mounted over itself: it can be neither
    /// renamed nor removed. A link anywhere on the way is an error.
    Pin { at: PathBuf, access: Access },
    /// An empty file or directory in the place of what is there; nothing where nothing is there.
    /// A link on the way is an error.
    Hide { at: PathBuf },
    /// A file with this text, read-only, in the place of the one that is there.
    Replace { at: PathBuf, text: String },
}

/// What may be done with what comes from outside. Devices and set-user-ID bits have no effect
/// either way.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Access {
    ReadOnly,
    Writable,
}

/// What is started.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Command {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// All of its environment.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: PathBuf,
    /// What makes a program visible that is not found, for the person who reads the error.
    pub if_missing: String,
}

/// The pseudo-terminal of a sandbox.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Terminal {
    /// Which of the streams 0 to 2 it stands for.
    pub streams: [bool; 3],
    pub rows: u16,
    pub columns: u16,
    /// Whether the other end is a terminal in raw mode, so that echo, line editing and signals
    /// are left to this one.
    pub interactive: bool,
}
