//! The files of this machine that every sandbox sees.

mod programs;
mod relative_sockets;
mod sockets;
mod system;

use std::path::{Component, Path, PathBuf};

pub use programs::programs;
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

/// Entries that hide the host's Unix sockets below the bind mounts. `searched` are mounted
/// directories that the caller has searched for sockets. Fails if there are too many files to search.
pub fn hidden_sockets(entries: &[Entry], searched: &[PathBuf]) -> Result<Vec<Entry>, String> {
    let mut hidden = sockets::hidden_sockets(entries);
    hidden.extend(relative_sockets::hidden_sockets(entries, searched)?);
    Ok(hidden)
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
