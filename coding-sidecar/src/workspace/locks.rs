//! One writer for each file name at a time.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::work::Work;

/// How long a waiting operation goes without a look at its [`Work`].
const WAIT: Duration = Duration::from_millis(50);

/// A name in a folder, however a path leads to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    pub(super) device: u64,
    pub(super) folder: u64,
    pub(super) name: OsString,
}

/// The names that are being replaced. At most one for each operation that runs.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    held: Mutex<HashSet<FileKey>>,
    released: Condvar,
}

/// Releases the name when dropped.
#[derive(Debug)]
pub(crate) struct FileLock<'a> {
    locks: &'a FileLocks,
    key: FileKey,
}

impl FileLocks {
    /// Waits until no other operation holds `key`.
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
