//! Token files on disk: read as they change, and rewritten whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid, fchown};
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

/// A larger file is a mistake in the path.
const MAX_BYTES: u64 = 1 << 20;

/// What changes when a file is written or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    changed: (i64, i64),
    length: u64,
}

/// The version of a file, and its content.
pub struct Read {
    pub version: Version,
    pub text: Zeroizing<Vec<u8>>,
}

/// The version of the file that is there now.
pub fn version(path: &Path) -> io::Result<Version> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is no token file"));
    }
    Ok(Version {
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        length: metadata.len(),
    })
}

/// Reads the file.
pub fn read(path: &Path) -> io::Result<Read> {
    // The version first: a change in between is then seen as one.
    let version = version(path)?;
    let text = Zeroizing::new(fs::read(path)?);
    Ok(Read { version, text })
}

/// A file that will take another one's place. It is made before the tokens are asked for:
/// refresh tokens often work once, and one that cannot be kept must not be spent.
pub struct Replacement {
    file: NamedTempFile,
    target: PathBuf,
}

impl Replacement {
    /// Beside the target, with its mode, and with its owner where we may give files away.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let target = fs::canonicalize(path)?;
        let dir = target.parent().unwrap_or(Path::new("/"));
        let file = NamedTempFile::new_in(dir)?;
        let metadata = fs::metadata(&target)?;
        let mode = metadata.permissions().mode() & 0o7777;
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))?;
        let (user, group) = (metadata.uid(), metadata.gid());
        let owner = (Uid::from_raw(user), Gid::from_raw(group));
        // Only root may; another user's file then becomes ours, as it does with any editor.
        let _ = fchown(file.as_file(), Some(owner.0), Some(owner.1));
        Ok(Self { file, target })
    }

    /// Puts it in place, on disk before the old one is gone.
    pub fn finish(mut self, text: &[u8]) -> io::Result<()> {
        self.file.write_all(text)?;
        self.file.as_file().sync_all()?;
        self.file.persist(&self.target)?;
        let dir = self.target.parent().unwrap_or(Path::new("/"));
        File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_keeps_mode_and_links_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("auth.json"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let before = version(&link).unwrap();
        Replacement::begin(&link).unwrap().finish(b"new").unwrap();
        drop(Replacement::begin(&link).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert_ne!(version(&link).unwrap(), before);
    }
}
