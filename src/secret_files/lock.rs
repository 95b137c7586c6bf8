//! Locks token files, so that processes that share a file do not spend its refresh token twice.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::time::{Duration, Instant};

use addons::contract::FileLock;
use rustix::fs::OFlags;

/// Limit on the wait for a lock. Another process holds the lock during a refresh: for its request,
/// which may take 20 s (`LIMIT` in `upstream/outbound.rs`), and then for writing the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts to take a lock.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The lock of a token file. It locks a separate file beside the token file, since every refresh
/// replaces the token file. The kernel releases the lock when the last handle is closed, also when
/// the process is killed.
pub struct LockBeside(#[expect(dead_code, reason = "held for the lock on it")] File);

impl FileLock for LockBeside {}

impl LockBeside {
    /// Blocks until this process has the lock. Fails if another process holds it for
    /// [`LOCK_TIMEOUT`], or if the lock file cannot be opened or locked. The error names the lock
    /// file.
    pub fn acquire(token_file: &Path) -> Result<Self, String> {
        Self::acquire_within(token_file, LOCK_TIMEOUT)
    }

    fn acquire_within(token_file: &Path, limit: Duration) -> Result<Self, String> {
        // `auth.json.lock` for `auth.json`.
        let path = token_file.with_added_extension("lock");
        let failed = |error: io::Error| {
            let (path, file) = (path.display(), token_file.display());
            format!("{path} cannot be locked, so {file} is not refreshed: {error}")
        };
        let file = open(&path, token_file).map_err(failed)?;
        let until = Instant::now() + limit;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(TRY_AGAIN);
                }
                Err(TryLockError::WouldBlock) => {
                    let (path, file) = (path.display(), token_file.display());
                    return Err(format!(
                        "another process has held {path} for {} s, so this process does not refresh {file}",
                        limit.as_secs()
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

/// Opens the lock file, or creates it with the owner of the token file, so that a server that runs
/// as root does not lock that owner out.
fn open(path: &Path, token_file: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut create = File::options();
    create.write(true).create_new(true).mode(0o600);
    match create.custom_flags(flags).open(path) {
        Ok(file) => {
            let owner = token_file.metadata()?;
            // Only root may change the owner. If this process is not root, the error is ignored,
            // and its user owns the lock file.
            let _ = fchown(&file, Some(owner.uid()), Some(owner.gid()));
            Ok(file)
        }
        // For reading only, since that suffices for a lock.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().read(true).custom_flags(flags).open(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_waits_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth.json");
        std::fs::write(&file, "{}").unwrap();
        let held = LockBeside::acquire(&file).unwrap();
        let refused = LockBeside::acquire_within(&file, Duration::ZERO).err();
        assert!(refused.unwrap().contains("auth.json.lock for 0 s"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| LockBeside::acquire(&file).is_ok());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waiting.is_finished());
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn an_error_names_the_lock_file_that_cannot_be_created() {
        let why = LockBeside::acquire(Path::new("/nowhere/auth.json")).err();
        let why = why.unwrap();
        assert!(why.starts_with("/nowhere/auth.json.lock cannot be locked"));
    }
}
