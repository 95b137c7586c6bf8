//! The state of a file at the start of a run, to find out at its end whether the file was changed.

use std::fs::{self, File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Limit on the bytes of a file whose content is compared.
const MAX_CONTENT: u64 = 256 << 10;
/// Limit on the files whose content is compared, since each is read at the start.
const MAX_CONTENTS: usize = 4000;

/// Takes fingerprints of files.
#[derive(Debug, Default)]
pub struct Fingerprints {
    /// Random, so that the command cannot make another content with the same hash.
    state: RandomState,
    read: usize,
}

/// The state of a file.
#[derive(Debug)]
pub struct Fingerprint {
    /// The target of a symbolic link.
    link: Option<PathBuf>,
    mode: u32,
    /// Inode, size and time of the last change of the inode, which no user can set.
    identity: (u64, u64, i64, i64),
    /// A hash of the content; `None` if the content is not compared.
    content: Option<u64>,
}

impl Fingerprints {
    /// The fingerprint of a file; `None` if it does not exist.
    pub fn take(&mut self, path: &Path) -> Option<Fingerprint> {
        let mut found = Fingerprint::without_content(path)?;
        if self.read < MAX_CONTENTS {
            self.read += 1;
            found.content = self.content(path);
        }
        Some(found)
    }

    /// Whether a file differs from its earlier fingerprint. A file that was rewritten with the same
    /// content does not differ.
    pub fn differs(&self, path: &Path, before: Option<&Fingerprint>) -> bool {
        let (before, now) = match (before, Fingerprint::without_content(path)) {
            (Some(before), Some(now)) => (before, now),
            (before, now) => return before.is_some() != now.is_some(),
        };
        if (&before.link, before.mode) != (&now.link, now.mode) {
            return true;
        }
        let is_same = || before.content.is_some() && before.content == self.content(path);
        before.identity != now.identity && !is_same()
    }

    fn content(&self, path: &Path) -> Option<u64> {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .ok()?;
        let is_short = |found: &Metadata| found.is_file() && found.len() <= MAX_CONTENT;
        file.metadata().ok().filter(is_short)?;
        let mut bytes = Vec::new();
        file.take(MAX_CONTENT + 1).read_to_end(&mut bytes).ok()?;
        Some(self.state.hash_one(bytes))
    }
}

impl Fingerprint {
    fn without_content(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self {
            link: fs::read_link(path).ok(),
            mode: found.mode(),
            identity: (found.ino(), found.size(), found.ctime(), found.ctime_nsec()),
            content: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn another_content_mode_or_target_is_a_difference_and_a_rewritten_file_is_none() {
        let work = tempfile::tempdir().unwrap();
        let mut fingerprints = Fingerprints::default();
        let path = work.path().join("file");
        assert!(fingerprints.take(&path).is_none());
        fs::write(&path, "old").unwrap();
        assert!(fingerprints.differs(&path, None));
        let before = fingerprints.take(&path);
        fs::remove_file(&path).unwrap();
        assert!(fingerprints.differs(&path, before.as_ref()));
        fs::write(&path, "old").unwrap();
        assert!(!fingerprints.differs(&path, before.as_ref()));
        fs::write(&path, "new").unwrap();
        assert!(fingerprints.differs(&path, before.as_ref()));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(fingerprints.differs(&path, before.as_ref()));

        let link = work.path().join("link");
        symlink("file", &link).unwrap();
        let before = fingerprints.take(&link);
        assert!(!fingerprints.differs(&link, before.as_ref()));
        fs::remove_file(&link).unwrap();
        symlink("other", &link).unwrap();
        assert!(fingerprints.differs(&link, before.as_ref()));
    }

    #[test]
    fn a_long_file_differs_after_a_write_that_keeps_size_and_date() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("file");
        let long = vec![b'a'; usize::try_from(MAX_CONTENT).unwrap() + 1];
        fs::write(&path, &long).unwrap();
        let mut fingerprints = Fingerprints::default();
        let before = fingerprints.take(&path);
        let date = fs::metadata(&path).unwrap().modified().unwrap();
        // The kernel's clock for files may stand still for some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::write(&path, vec![b'b'; long.len()]).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(date)
            .unwrap();
        assert!(fingerprints.differs(&path, before.as_ref()));
    }
}
