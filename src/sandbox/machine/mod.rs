//! The files of this machine that every sandbox sees.

mod programs;
mod sockets;
mod system;
mod user;

use std::fs;
use std::path::{Component, Path, PathBuf};

pub use programs::programs;
pub use sockets::hidden_sockets;
pub use system::{CERTIFICATES, own, system};

use super::{Access, Entry};

/// A read-only bind mount.
pub fn read_only(from: &Path, at: &Path) -> Entry {
    Entry::Bind {
        from: from.to_owned(),
        at: at.to_owned(),
        access: Access::ReadOnly,
    }
}

/// The target of a path, if it is a file.
fn plain_file(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok().filter(|path| path.is_file())
}

/// Removes `..` from a path lexically, since the path need not exist.
pub fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}
