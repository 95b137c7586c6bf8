//! What of this machine every sandbox sees.

mod programs;
mod sockets;
mod system;
mod unplaced;

use std::path::{Component, Path, PathBuf};

pub use programs::programs;
pub use system::{CERTIFICATES, own, system};

use super::{Access, Entry};

/// What is bound read-only.
pub fn read_only(from: &Path, at: &Path) -> Entry {
    Entry::Bind {
        from: from.to_owned(),
        at: at.to_owned(),
        access: Access::ReadOnly,
    }
}

/// Hides the sockets of the host that could be reached through what is bound. An error says that
/// they cannot be found.
pub fn hidden_sockets(entries: &[Entry]) -> Result<Vec<Entry>, String> {
    let mut hidden = sockets::hidden_sockets(entries);
    hidden.extend(unplaced::hidden_sockets(entries)?);
    Ok(hidden)
}

/// A path without `..`, by its text alone: what it names may be missing.
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
