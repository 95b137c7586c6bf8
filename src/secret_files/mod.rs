//! Reads files that contain secrets, and reads them again after each change. Locks each token file
//! by a lock file beside it, and replaces token files atomically.

mod lock;
mod replacement;
mod source;

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{FileLock, FileVersion, Replacement, SecretFiles, SecretSource, SecretText};
use zeroize::Zeroizing;

use lock::LockBeside;
use replacement::TempBeside;
use source::InFile;

/// Limit on the size of a token file, in bytes. A larger file is refused: the configured path
/// probably names another file.
const MAX_BYTES: u64 = 1 << 20;

/// Files on the disks of this machine.
pub struct FilesOnDisk;

impl SecretFiles for FilesOnDisk {
    fn source(&self, path: &Path) -> Arc<dyn SecretSource> {
        Arc::new(InFile::new(path))
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        // Checked before the file is opened, since opening a FIFO waits for a writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        File::open(path).map(drop)
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }

    fn read(&self, path: &Path, known: Option<&FileVersion>) -> io::Result<Option<SecretText>> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() || metadata.len() > MAX_BYTES {
            return Err(io::Error::other("not a regular file of at most 1 MiB"));
        }
        // The version is taken before the text is read, so that the next read notices a change in
        // between.
        let version = version(&metadata);
        if known == Some(&version) {
            return Ok(None);
        }
        let text = Zeroizing::new(fs::read(path)?);
        Ok(Some(SecretText { version, text }))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, String> {
        Ok(Box::new(LockBeside::acquire(path)?))
    }

    fn replace(&self, path: &Path) -> io::Result<Box<dyn Replacement>> {
        Ok(Box::new(TempBeside::create(path)?))
    }
}

/// The version of the file with this metadata.
pub fn version(metadata: &Metadata) -> FileVersion {
    FileVersion {
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        length: metadata.len(),
    }
}
