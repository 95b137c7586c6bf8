//! The data directory, locked so that only one server at a time uses it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::failure::Failure;

/// The file that the running server locks, and that contains its process id.
const LOCK: &str = "lock";

/// The lock of the data directory. Released when this is dropped, or by the kernel when the process
/// ends.
pub struct DataDir {
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing, checks that this process can write to it, and locks
    /// it. If another server holds the lock, the error is [`Failure::InUse`], with that server's
    /// process id if the lock file contains it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |source| Failure::DataDir {
            path: path.to_owned(),
            source,
        };
        prepare(path).map_err(failed)?;
        let mut lock = open_lock(path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::InUse {
                    path: path.to_owned(),
                    pid: read_pid(&mut lock),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Errors are ignored: the process id is only for the error message of a second server, and
        // a full disk must not prevent the start.
        let _ = write_pid(&mut lock);
        Ok(Self { _lock: lock })
    }
}

/// Makes a directory if it is missing. Fails if another user made it, or every user can write to it.
/// `dev` calls it: its state is below the working directory, where other users may have made that
/// directory before.
pub fn claim(path: &Path) -> Result<(), Failure> {
    // An error is reported when the directory is used.
    let _ = DirBuilder::new().mode(0o700).create(path);
    // A link is checked as well as its target.
    let found = [fs::symlink_metadata(path), fs::metadata(path)];
    let us = rustix::process::geteuid().as_raw();
    let why = found
        .into_iter()
        .flatten()
        .find_map(|found| match found.uid() {
            owner if owner != us => Some("belongs to another user"),
            _ if found.is_dir() && found.mode() & 0o002 != 0 => {
                Some("can be changed by every user")
            }
            _ => None,
        });
    let path = path.to_owned();
    why.map_or(Ok(()), |why| Err(Failure::Foreign { path, why }))
}

fn prepare(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    }
    tempfile::tempfile_in(path).map(drop)
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path.join(LOCK))
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_locked_directory_fails_and_names_the_process_id_of_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::open(&path).unwrap();
        let second = DataDir::open(&path).err().unwrap();
        assert_eq!(second.code(), crate::exit_code::UNAVAILABLE);
        let ours = format!("process {}", std::process::id());
        assert!(second.to_string().contains(&ours), "{second}");
        drop(first);
        DataDir::open(&path).unwrap();
    }
}
