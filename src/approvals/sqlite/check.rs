//! When the file is checked for damage.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::sqlite::{SqliteError, verify};

/// A check reads the whole file, which can take seconds, so a file is checked at most once in this
/// time, however often operations fail.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Device and inode.
pub(super) type FileId = (u64, u64);

pub(super) fn id_of(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// The state of the file's content as far as metadata shows it.
type Version = (FileId, u64, i64, i64);

fn version_of(found: &Metadata) -> Version {
    (
        id_of(found),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
    )
}

/// Checks a file when it is new, and again after an error that damage can cause. A full disk or a
/// failed write does not lead to a check.
#[derive(Default)]
pub(super) struct Checks {
    latest: Option<Check>,
    /// Whether an operation failed as it fails on a damaged file.
    is_suspect: bool,
}

struct Check {
    at: Instant,
    of: Version,
    damage: Option<String>,
}

impl Checks {
    /// Records the error of an operation.
    pub(super) fn note(&mut self, error: &SqliteError) {
        self.is_suspect |= error.is_damage();
    }

    /// Fails with [`SqliteError::Damaged`] if the file, whose metadata were `found`, is damaged.
    pub(super) fn check(&mut self, conn: &Connection, found: &Metadata) -> Result<(), SqliteError> {
        let version = version_of(found);
        if let Some(check) = self.latest.as_ref().filter(|check| check.of.0 == version.0) {
            let is_recent = check.at.elapsed() < CHECK_INTERVAL;
            match &check.damage {
                None if is_recent || !self.is_suspect => return Ok(()),
                Some(damage) if is_recent && check.of == version => {
                    return Err(SqliteError::Damaged(damage.clone()));
                }
                _ => {}
            }
        }
        let checked = verify(conn, "quick_check");
        let damage = match &checked {
            Ok(()) => None,
            Err(SqliteError::Damaged(damage)) => Some(damage.clone()),
            Err(error) if error.is_damage() => Some(error.to_string()),
            // The check itself failed, so it told nothing about the file.
            Err(_) => return checked,
        };
        self.is_suspect = false;
        self.latest = Some(Check {
            at: Instant::now(),
            of: version,
            damage,
        });
        checked
    }
}
