//! Where credentials get their values: from the configuration, or from files that may change.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::SecretSource;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::config::SecretConfig;

/// How long a value is used before its file is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// No token is longer; a larger file is a mistake in the path.
const MAX_BYTES: u64 = 64 * 1024;

/// The source that a configuration describes.
pub fn source(config: &SecretConfig) -> Arc<dyn SecretSource> {
    match config {
        SecretConfig::Value(value) => Arc::new(Fixed(Arc::new(value.clone()))),
        SecretConfig::File(path) => Arc::new(InFile {
            path: path.clone(),
            seen: Mutex::new(None),
        }),
    }
}

struct Fixed(Arc<Zeroizing<String>>);

impl SecretSource for Fixed {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        Ok(Arc::clone(&self.0))
    }
}

struct InFile {
    path: PathBuf,
    seen: Mutex<Option<Seen>>,
}

struct Seen {
    looked: Instant,
    version: Version,
    value: Arc<Zeroizing<String>>,
}

/// What changes when a file is written or replaced.
#[derive(PartialEq, Eq)]
struct Version {
    inode: u64,
    changed: (i64, i64),
    length: u64,
}

impl From<&Metadata> for Version {
    fn from(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            length: metadata.len(),
        }
    }
}

impl SecretSource for InFile {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        let mut seen = self.seen.lock();
        if let Some(seen) = seen
            .as_ref()
            .filter(|seen| seen.looked.elapsed() < LOOK_AGAIN)
        {
            return Ok(Arc::clone(&seen.value));
        }
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", self.path.display());
        let metadata = fs::metadata(&self.path).map_err(|error| failed(&error))?;
        let version = Version::from(&metadata);
        if let Some(seen) = seen.as_mut().filter(|seen| seen.version == version) {
            seen.looked = Instant::now();
            return Ok(Arc::clone(&seen.value));
        }
        if version.length > MAX_BYTES {
            return Err(failed(&"it is too large to be a secret"));
        }
        let text = Zeroizing::new(fs::read_to_string(&self.path).map_err(|error| failed(&error))?);
        let value = Arc::new(Zeroizing::new(text.trim().to_owned()));
        if value.is_empty() {
            return Err(failed(&"it is empty"));
        }
        *seen = Some(Seen {
            looked: Instant::now(),
            version,
            value: Arc::clone(&value),
        });
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_a_file_is_read_again_when_it_changes_and_an_error_never_shows_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = source(&SecretConfig::File(path.clone()));
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
}
