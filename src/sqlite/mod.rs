//! SQLite files: creates, opens, migrates and checks them.

mod error;
mod schema;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use time::OffsetDateTime;

pub use error::SqliteError;
pub use schema::{expect_current, migrate, verify, version};

/// How long an operation waits for the lock of another process, such as `registry restore`, before
/// it fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates an empty file, which only its owner can read, unless the file exists.
pub fn create_if_missing(path: &Path) -> Result<(), SqliteError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match created {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// Opens the file for writing; fails if it is missing. After a commit, both the change and the
/// deletion of its journal are on disk.
pub fn open_to_write(path: &Path) -> Result<Connection, SqliteError> {
    let conn = open(path)?;
    conn.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA;")?;
    Ok(conn)
}

/// Opens the file; fails if it is missing. Readers too need write access: a process that was killed
/// during a change leaves a hot journal, and the next connection rolls it back.
pub fn open(path: &Path) -> Result<Connection, SqliteError> {
    if !path.exists() {
        return Err(SqliteError::Missing(path.to_owned()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // 256 KiB. What is read often is kept in memory elsewhere, so a larger cache of pages is useless.
    conn.pragma_update(None, "cache_size", -256)?;
    Ok(conn)
}

/// Adds the path to an error of the file system.
pub fn failed(path: &Path) -> impl Fn(io::Error) -> SqliteError + use<> {
    let path = path.to_owned();
    move |source| SqliteError::Io {
        path: path.clone(),
        source,
    }
}

/// Returns the milliseconds since 1970, rounded toward zero.
pub fn to_millis(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// The time that is this many milliseconds after 1970; `None` if it is out of range.
pub fn from_millis(millis: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).ok()
}
