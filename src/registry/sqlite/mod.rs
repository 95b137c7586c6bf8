//! The SQLite file.
//!
//! Every operation opens a connection of its own and closes it again. So nothing is ever
//! answered from pages that the file no longer has, nothing cached is ever written over a file
//! that was damaged or exchanged in the meantime, and between two operations the file alone
//! holds everything. Changes go by a rollback journal, so that reading writes nothing, not even
//! the index of a WAL: a full disk stops changes alone.

pub mod offline;
mod row;

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use addons::contract::{Level, Registration};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use thiserror::Error;
use time::OffsetDateTime;

use super::NewRegistration;
use row::to_millis;

pub use row::RepoEntry;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "registry.db";

/// How long another process (`registry restore`) may hold the file before we give up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Each step brings the file from the version of its index to the next one.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE containers (
        lease INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again, also after a deletion
        id TEXT NOT NULL UNIQUE,
        address TEXT UNIQUE,                     -- NULL: a listener of its own
        repos TEXT NOT NULL,                     -- JSON, as registered
        auth_mode TEXT NOT NULL,
        allowed_domains TEXT,                    -- JSON; NULL: not narrowed
        created_at INTEGER NOT NULL,             -- milliseconds since 1970
        expires_at INTEGER NOT NULL,
        level TEXT NOT NULL
    ) STRICT;
    CREATE INDEX containers_by_expiry ON containers (expires_at);
"];

/// Why the file could not be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// It is created at start alone: one that vanishes later was taken away.
    #[error("{} is missing: put it back, or restart to begin with an empty one", .0.display())]
    Missing(PathBuf),
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// SQLite refused, or the file is not its own.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// `integrity_check` or `quick_check` found something.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// Another version of the program made it.
    #[error("the file has schema version {found}, this program reads {expected}")]
    Schema { found: i64, expected: i64 },
    /// A row that this program did not write.
    #[error("the row of lease {0} cannot be understood")]
    Row(i64),
    /// Another process holds the file.
    #[error("the file is in use by another process: try again")]
    Busy,
    /// A value that has no JSON form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl StoreError {
    /// Whether another process holds the file, which passes.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Sqlite(error) => error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy),
            _ => false,
        }
    }

    /// Whether it is the content that is wrong, not the access to it.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) | Self::Schema { .. } | Self::Row(_) => true,
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
            ),
            Self::Missing(_) | Self::Io { .. } | Self::Busy | Self::Json(_) => false,
        }
    }
}

/// What tells that others changed the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// What the file's `user_version` is once all migrations are done.
const VERSION: i64 = MIGRATIONS.len() as i64;

pub(super) struct Store {
    path: PathBuf,
    /// The file as it was when the view was last like it.
    seen: Option<Stamp>,
    /// Levels on disk that are not `Public`, by lease.
    levels: HashMap<u64, Level>,
    /// The highest lease ever seen. A backup that is restored under us knows less, and a number
    /// that was given out is never given out again.
    highest: u64,
}

impl Store {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: None,
            levels: HashMap::new(),
            highest: 0,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a missing file and brings an older one up to date. A damaged one is left alone.
    pub(super) fn start(&self) -> Result<(), StoreError> {
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

    /// Looks whether the file can be read, through a connection that has no page cached.
    /// Hands over its rows if it is not what was seen last, or if `whole` asks for it, and
    /// answers whether it did. After an error they say nothing.
    pub(super) fn look(
        &mut self,
        whole: bool,
        mut take: impl FnMut(Registration),
    ) -> Result<bool, StoreError> {
        let seen = self.seen.take();
        let stamp = stamp(&self.path)?;
        let conn = open_to_read(&self.path)?;
        if !whole && seen == Some(stamp) {
            self.seen = seen;
            return Ok(false);
        }
        verify(&conn, "quick_check")?;
        let (mut highest, mut levels) = (self.highest, HashMap::new());
        row::load(&conn, |row| {
            highest = highest.max(row.lease);
            if row.level != Level::Public {
                levels.insert(row.lease, row.level);
            }
            take(row);
        })?;
        (self.highest, self.levels) = (highest, levels);
        self.seen = Some(stamp);
        Ok(true)
    }

    pub(super) fn insert(&mut self, new: &NewRegistration) -> Result<Registration, StoreError> {
        let above = key(self.highest);
        let begun = self.write(|conn| row::insert(conn, new, above, OffsetDateTime::now_utc()))?;
        self.highest = self.highest.max(begun.lease);
        Ok(begun)
    }

    pub(super) fn extend(&mut self, lease: u64, to: OffsetDateTime) -> Result<(), StoreError> {
        self.write(|conn| {
            conn.execute(
                "UPDATE containers SET expires_at = ?2 WHERE lease = ?1",
                params![key(lease), to_millis(to)],
            )?;
            Ok(())
        })
    }

    pub(super) fn delete(&mut self, leases: &[u64]) -> Result<(), StoreError> {
        self.write(|conn| {
            for lease in leases {
                conn.execute("DELETE FROM containers WHERE lease = ?1", [key(*lease)])?;
            }
            Ok(())
        })
    }

    /// Deletes what ran out before a time; answers how many.
    pub(super) fn prune(&mut self, before: OffsetDateTime) -> Result<usize, StoreError> {
        self.write(|conn| {
            let deleted = conn.execute(
                "DELETE FROM containers WHERE expires_at <= ?1",
                [to_millis(before)],
            )?;
            Ok(deleted)
        })
    }

    /// Whether the file has this level for the lease already.
    pub(super) fn has_level(&self, lease: u64, level: Level) -> bool {
        self.levels.get(&lease).copied().unwrap_or_default() == level
    }

    pub(super) fn set_level(&mut self, lease: u64, level: Level) -> Result<(), StoreError> {
        self.write(|conn| {
            conn.execute(
                "UPDATE containers SET level = ?2 WHERE lease = ?1",
                params![key(lease), level.as_str()],
            )?;
            Ok(())
        })?;
        self.levels.insert(lease, level);
        Ok(())
    }

    /// Runs one change in a transaction, and takes note that the file is ours as it is now, unless
    /// another process changed it since the last look.
    fn write<T>(
        &mut self,
        change: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
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
}

/// Lease numbers come from SQLite's positive row ids.
fn key(lease: u64) -> i64 {
    i64::try_from(lease).unwrap_or(i64::MAX)
}

fn create_if_missing(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match created {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(StoreError::Io {
            path: path.to_owned(),
            source: error,
        }),
        _ => Ok(()),
    }
}

/// Opens for reading; fails unless the file is a registry of this version.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    let conn = open(path)?;
    let found = version(&conn)?;
    if found != VERSION {
        return Err(StoreError::Schema {
            found,
            expected: VERSION,
        });
    }
    conn.query_row("SELECT max(lease) FROM containers", [], |_| Ok(()))?;
    Ok(conn)
}

/// Opens for writing, without creating. What is committed is on disk, and so is the end of its
/// journal.
pub(super) fn open_to_write(path: &Path) -> Result<Connection, StoreError> {
    let conn = open(path)?;
    conn.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA;")?;
    Ok(conn)
}

/// Opens without creating. Who only reads may write too: a process that was killed in a change
/// leaves its journal, which the next one rolls back.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    if !path.exists() {
        return Err(StoreError::Missing(path.to_owned()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // All rows are in memory once they were read; another copy of their pages serves nobody.
    conn.pragma_update(None, "cache_size", -256)?;
    Ok(conn)
}

pub(super) fn migrate(conn: &Connection) -> Result<(), StoreError> {
    let version = version(conn)?;
    for (next, step) in (1..).zip(MIGRATIONS) {
        if next <= version {
            continue;
        }
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE; {step} PRAGMA user_version = {next}; COMMIT;"
        ))?;
    }
    Ok(())
}

fn version(conn: &Connection) -> Result<i64, StoreError> {
    Ok(conn.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// Runs `quick_check` or `integrity_check`.
pub(super) fn verify(conn: &Connection, pragma: &str) -> Result<(), StoreError> {
    let mut statement = conn.prepare(&format!("PRAGMA {pragma}"))?;
    let problems = statement.query_map([], |row| row.get(0))?;
    let problems: Vec<String> = problems.collect::<Result<_, _>>()?;
    match problems.as_slice() {
        [only] if only == "ok" => Ok(()),
        _ => Err(StoreError::Damaged(problems.join("; "))),
    }
}

fn stamp(path: &Path) -> Result<Stamp, StoreError> {
    let data = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(path.to_owned()),
        _ => StoreError::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    Ok(Stamp {
        inode: (data.dev(), data.ino()),
        size: data.size(),
        changed: (data.ctime(), data.ctime_nsec()),
    })
}

/// A file of the same name with something behind it.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
