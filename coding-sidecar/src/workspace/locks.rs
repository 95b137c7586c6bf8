//! Locks of file names, so that each file has one writer at a time.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::work::Work;

/// The time between two checks of [`Work`] by an operation that waits.
const WAIT: Duration = Duration::from_millis(50);

/// A file name in a folder. The folder is identified by its device and inode, so every path to the
/// name gives the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    pub(super) device: u64,
    pub(super) folder: u64,
    pub(super) name: OsString,
}

/// The locked names, at most one for each running operation.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    held: Mutex<HashSet<FileKey>>,
    released: Condvar,
}

/// A locked name. Dropping this unlocks it.
#[derive(Debug)]
pub(crate) struct FileLock<'a> {
    locks: &'a FileLocks,
    key: FileKey,
}

impl FileLocks {
    /// Waits until no other operation has locked `key`, and locks it. Fails if the operation is
    /// cancelled or its deadline passes while it waits.
    pub(super) fn lock(&self, key: FileKey, work: &Work) -> Result<FileLock<'_>, Failure> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while held.contains(&key) {
            work.check()?;
            held = self
                .released
                .wait_timeout(held, WAIT)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        held.insert(key.clone());
        Ok(FileLock { locks: self, key })
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        let mut held = self
            .locks
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        held.remove(&self.key);
        self.locks.released.notify_all();
    }
}
