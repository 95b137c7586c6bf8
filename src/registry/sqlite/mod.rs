//! The lease store in a SQLite file.
//!
//! Every operation opens and closes its own connection, so no page cache outlives it. As a result:
//!
//! - if the file is damaged or replaced, the next operation reads the new content, and never writes
//!   a cached page into it;
//! - between two operations, the file is complete without a journal.
//!
//! Changes use a rollback journal, not a WAL. Even readers of a WAL write to disk (its index), so a
//! full disk would prevent reads too.

mod error;
pub mod offline;
mod row;
mod schema;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use addons::contract::{ContainerId, LeaseId, Registration, Standing};
use rusqlite::{Connection, OpenFlags, Params, params};
use time::OffsetDateTime;

use super::{LeaseStore, StoreError};
use row::to_millis;
use schema::{VERSION, expect_current, migrate, verify, version};

pub use error::SqliteError;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "registry.db";

/// How long an operation waits for the lock of another process, such as `registry restore`, before
/// it fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The metadata by which changes of other processes are detected.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// Leases in one SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    /// The file's metadata at the latest read of all leases, or after this store's latest change.
    /// `None` if the next [`LeaseStore::sync`] must read all leases.
    seen: Option<Stamp>,
}

impl SqliteStore {
    /// Returns the store in this file. [`LeaseStore::open`] creates the file if it is missing.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// Runs one change in a transaction. Afterwards, `seen` is the new metadata, or `None` if the
    /// change failed or another process had changed the file before.
    fn write<T>(
        &mut self,
        change: impl FnOnce(&Connection) -> Result<T, SqliteError>,
    ) -> Result<T, SqliteError> {
        let seen = self.seen.take();
        let conn = open_to_write(&self.path)?;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let is_as_seen = seen == stamp(&self.path).ok();
        let done = change(&conn)?;
        conn.execute_batch("COMMIT")?;
        conn.close().map_err(|(_, error)| error)?;
        if is_as_seen {
            self.seen = stamp(&self.path).ok();
        }
        Ok(done)
    }

    /// Runs one statement as a change. Returns the number of rows that it changed.
    fn execute(&mut self, sql: &str, params: impl Params) -> Result<usize, StoreError> {
        Ok(self.write(|conn| Ok(conn.execute(sql, params)?))?)
    }
}

impl fmt::Display for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl LeaseStore for SqliteStore {
    fn open(&mut self) -> Result<(), StoreError> {
        create_if_missing(&self.path)?;
        let version = {
            let conn = open(&self.path)?;
            verify(&conn, "quick_check")?;
            version(&conn)?
        };
        if version < VERSION {
            migrate(&open_to_write(&self.path)?)?;
        }
        Ok(())
    }

    /// Opens a new connection, even if the file is unchanged, to check that it can be read.
    fn sync(
        &mut self,
        whole: bool,
        take: &mut dyn FnMut(Registration),
    ) -> Result<bool, StoreError> {
        let seen = self.seen.take();
        let stamp = stamp(&self.path)?;
        let conn = open_to_read(&self.path)?;
        if !whole && seen == Some(stamp) {
            self.seen = seen;
            return Ok(false);
        }
        verify(&conn, "quick_check")?;
        row::load(&conn, take)?;
        self.seen = Some(stamp);
        Ok(true)
    }

    fn begin(&mut self, leases: &mut [Registration]) -> Result<(), StoreError> {
        Ok(self.write(|conn| {
            let mut leases = leases.iter_mut();
            leases.try_for_each(|lease| row::insert(conn, lease))
        })?)
    }

    fn extend(&mut self, lease: LeaseId, expires_at: OffsetDateTime) -> Result<(), StoreError> {
        let sql = "UPDATE containers SET expires_at = ?2 WHERE lease = ?1";
        let params = params![lease.to_string(), to_millis(expires_at)];
        self.execute(sql, params).map(drop)
    }

    fn remove(&mut self, id: &ContainerId) -> Result<bool, StoreError> {
        Ok(self.write(|conn| {
            let leases = conn.execute("DELETE FROM containers WHERE id = ?1", [id.as_str()])?;
            let kept = conn.execute("DELETE FROM standings WHERE id = ?1", [id.as_str()])?;
            Ok(leases > 0 || kept > 0)
        })?)
    }

    fn end(&mut self, leases: &[(LeaseId, Standing)]) -> Result<(), StoreError> {
        Ok(self.write(|conn| {
            let update = "UPDATE containers SET level = ?2, aborted = ?3 WHERE lease = ?1";
            let mut update = conn.prepare(update)?;
            let mut delete = conn.prepare("DELETE FROM containers WHERE lease = ?1")?;
            for (lease, standing) in leases {
                let lease = lease.to_string();
                update.execute(params![lease, standing.level.as_str(), standing.aborted])?;
                delete.execute([lease])?;
            }
            Ok(())
        })?)
    }

    fn prune(&mut self, before: OffsetDateTime) -> Result<usize, StoreError> {
        let sql = "DELETE FROM containers WHERE expires_at <= ?1";
        self.execute(sql, [to_millis(before)])
    }

    fn set_standing(&mut self, id: &ContainerId, standing: Standing) -> Result<(), StoreError> {
        Ok(self.write(|conn| row::set_standing(conn, id, standing))?)
    }
}

fn create_if_missing(path: &Path) -> Result<(), SqliteError> {
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

/// Opens the file for reading. Fails unless the file is a registry of the current schema version.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, SqliteError> {
    let conn = open(path)?;
    expect_current(&conn)?;
    // The version is in the file's header. This query also reads pages of the table, so it fails if
    // they cannot be read.
    conn.query_row("SELECT max(lease) FROM containers", [], |_| Ok(()))?;
    Ok(conn)
}

/// Opens the file for writing; fails if it is missing. After a commit, both the change and the
/// deletion of its journal are on disk.
pub(super) fn open_to_write(path: &Path) -> Result<Connection, SqliteError> {
    let conn = open(path)?;
    conn.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA;")?;
    Ok(conn)
}

/// Opens the file; fails if it is missing. Readers too need write access: a process that was killed
/// during a change leaves a hot journal, and the next connection rolls it back.
pub(super) fn open(path: &Path) -> Result<Connection, SqliteError> {
    if !path.exists() {
        return Err(SqliteError::Missing(path.to_owned()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // 256 KiB. The view keeps all leases in memory, so a larger cache of pages is useless.
    conn.pragma_update(None, "cache_size", -256)?;
    Ok(conn)
}

fn stamp(path: &Path) -> Result<Stamp, SqliteError> {
    let data = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => SqliteError::Missing(path.to_owned()),
        _ => failed(path)(error),
    })?;
    Ok(Stamp {
        inode: (data.dev(), data.ino()),
        size: data.size(),
        changed: (data.ctime(), data.ctime_nsec()),
    })
}

/// Adds the path to an error of the file system.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> SqliteError + use<> {
    let path = path.to_owned();
    move |source| SqliteError::Io {
        path: path.clone(),
        source,
    }
}

/// The path with a suffix appended to the file name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
