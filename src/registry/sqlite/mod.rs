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

pub mod offline;
mod row;
mod schema;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use addons::contract::{ContainerId, LeaseId, Registration, Standing};
use rusqlite::{Connection, Params, params};
use time::OffsetDateTime;

use super::{LeaseStore, StoreError};
use crate::sqlite::{
    create_if_missing, expect_current, failed, migrate, open, open_to_write, to_millis, verify,
    version,
};
use schema::{MIGRATIONS, VERSION};

pub use crate::sqlite::SqliteError;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "registry.db";

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

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        match error.is_busy() {
            true => Self::Busy(error.into()),
            false => Self::Failed(error.into()),
        }
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
            migrate(&open_to_write(&self.path)?, &MIGRATIONS)?;
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

/// Opens the file for reading. Fails unless the file is a registry of the current schema version.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, SqliteError> {
    let conn = open(path)?;
    expect_current(&conn, VERSION)?;
    // The version is in the file's header. This query also reads pages of the table, so it fails if
    // they cannot be read.
    conn.query_row("SELECT max(lease) FROM containers", [], |_| Ok(()))?;
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

/// The path with a suffix appended to the file name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
