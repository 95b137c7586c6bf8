//! A secret in a file, read again when the file changes.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use addons::contract::{FileVersion, SecretSource};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::version;

/// How long a value is used before the metadata of its file is read again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Limit on the size of a file with a secret, in bytes. A larger file is refused: the configured
/// path probably names another file.
const MAX_BYTES: u64 = 64 * 1024;

/// A secret in a file.
pub struct InFile {
    path: PathBuf,
    began: Instant,
    /// When the file's metadata must be read again, in milliseconds since `began`.
    fresh_until: AtomicU64,
    /// The number of times that `seen` changed.
    version: AtomicU64,
    /// The content of the file at the latest read; `None` before the first read and after a failed
    /// one.
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone)]
struct Seen {
    version: FileVersion,
    value: Arc<Zeroizing<String>>,
}

impl InFile {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            began: Instant::now(),
            fresh_until: AtomicU64::new(0),
            version: AtomicU64::new(0),
            seen: Mutex::new(None),
        }
    }

    fn millis(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn is_fresh(&self) -> bool {
        self.millis() < self.fresh_until.load(Ordering::Acquire)
    }

    /// Returns the content of the file without surrounding white space. Reads the file only if its
    /// version differs from that of `seen`. Fails if the file is not a regular file, cannot be
    /// read, is empty, or is larger than [`MAX_BYTES`]. The error contains the path, never the
    /// content.
    fn look(&self, seen: Option<&Seen>) -> Result<Seen, String> {
        let failed = |why: &dyn Display| format!("{}: {why}", self.path.display());
        let metadata = fs::metadata(&self.path).map_err(|error| failed(&error))?;
        let version = version(&metadata);
        if let Some(seen) = seen.filter(|seen| seen.version == version) {
            return Ok(seen.clone());
        }
        if !metadata.is_file() {
            // Reading a FIFO would wait for a writer.
            return Err(failed(&"not a regular file"));
        }
        if version.length > MAX_BYTES {
            return Err(failed(
                &"larger than 64 KiB, which is too large for a secret",
            ));
        }
        let text = Zeroizing::new(fs::read_to_string(&self.path).map_err(|error| failed(&error))?);
        let value = Arc::new(Zeroizing::new(text.trim().to_owned()));
        if value.is_empty() {
            return Err(failed(&"the file is empty"));
        }
        Ok(Seen { version, value })
    }
}

impl SecretSource for InFile {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        let mut seen = self.seen.lock();
        if let Some(seen) = seen.as_ref().filter(|_| self.is_fresh()) {
            return Ok(Arc::clone(&seen.value));
        }
        let until = self.millis() + LOOK_AGAIN.as_millis() as u64;
        let found = self.look(seen.as_ref());
        let now = found.as_ref().ok().map(|found| &found.version);
        if now != seen.as_ref().map(|seen| &seen.version) {
            self.version.fetch_add(1, Ordering::Release);
        }
        // A file that could not be read is tried again at each call, so that a correction takes
        // effect at once.
        let until = if found.is_ok() { until } else { 0 };
        *seen = found.clone().ok();
        self.fresh_until.store(until, Ordering::Release);
        found.map(|seen| seen.value)
    }

    fn version(&self) -> u64 {
        if !self.is_fresh() {
            let _readable = self.read();
        }
        self.version.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_secret_is_read_again_and_errors_never_contain_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = InFile::new(&path);
        assert!(source.read().is_err_and(|why| why.contains("key")));
        fs::write(&path, "first\n").unwrap();
        assert!(source.read().is_ok_and(|value| **value == "first"));
        fs::write(&path, "the second").unwrap();
        std::thread::sleep(LOOK_AGAIN + Duration::from_millis(50));
        assert!(source.read().is_ok_and(|value| **value == "the second"));
        fs::remove_file(&path).unwrap();
        std::thread::sleep(LOOK_AGAIN + Duration::from_millis(50));
        assert!(source.read().is_err_and(|why| !why.contains("second")));
    }

    #[test]
    fn a_fifo_that_replaced_a_secret_is_refused_without_waiting_for_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let refused = InFile::new(&path).read();
        assert!(refused.is_err_and(|why| why.ends_with("not a regular file")));
    }

    #[test]
    fn the_version_changes_if_and_only_if_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = InFile::new(&path);
        let next_second = || std::thread::sleep(LOOK_AGAIN + Duration::from_millis(50));
        let missing = source.version();
        assert_eq!(source.version(), missing);
        fs::write(&path, "first").unwrap();
        let first = source.version();
        assert_ne!(first, missing);
        assert!(source.read().is_ok_and(|value| **value == "first"));
        next_second();
        assert_eq!(source.version(), first);
        fs::write(&path, "other").unwrap();
        next_second();
        let other = source.version();
        assert_ne!(other, first);
        assert!(source.read().is_ok_and(|value| **value == "other"));
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        next_second();
        let gone = source.version();
        assert_ne!(gone, other);
        assert!(source.read().is_err());
        assert_eq!(source.version(), gone);
        fs::rename(&aside, &path).unwrap();
        assert_ne!(source.version(), gone);
        assert!(source.read().is_ok_and(|value| **value == "other"));
    }

    #[test]
    fn the_version_changes_soon_after_the_file_changes_even_without_a_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = InFile::new(&path);
        fs::write(&path, "first").unwrap();
        let first = source.version();
        fs::write(&path, "the second").unwrap();
        let changed = Instant::now();
        while source.version() == first {
            assert!(changed.elapsed() < LOOK_AGAIN + Duration::from_millis(500));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(source.read().is_ok_and(|value| **value == "the second"));
    }
}
