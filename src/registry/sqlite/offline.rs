//! Checks, backups and restores of the file, with or without a running server.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use addons::contract::{ContainerId, LeaseId, Registration, Standing};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempPath;
use time::OffsetDateTime;
use time::macros::format_description;

use super::schema::{MIGRATIONS, VERSION};
use super::{SqliteError, beside, open_to_read, row};
use crate::sqlite::{expect_current, failed, migrate, open, open_to_write, verify};

/// Limit on the attempts to copy the file while another process writes to it.
const COPY_ATTEMPTS: u32 = 100;
/// The pause between two attempts to copy the file.
const COPY_PAUSE: Duration = Duration::from_millis(100);

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// The number of registrations in the restored registry.
    pub registrations: usize,
    /// The new path of a registry that was moved aside, and why; `None` if it was missing or
    /// usable.
    pub moved: Option<(PathBuf, SqliteError)>,
}

/// Runs `integrity_check` and decodes every row. Returns the number of registrations.
pub fn check(path: &Path) -> Result<usize, SqliteError> {
    let conn = open_to_read(path)?;
    verify(&conn, "integrity_check")?;
    row::kept_standings(&conn)?;
    row::load(&conn, drop)
}

/// What a backup does if its target exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// Fails with [`io::ErrorKind::AlreadyExists`].
    Keep,
    /// Replaces the target atomically.
    Replace,
}

/// Copies a snapshot of the registry into one file, even while a server runs. Returns the number of
/// registrations.
pub fn backup(path: &Path, to: &Path, present: Present) -> Result<usize, SqliteError> {
    let conn = open_to_read(path)?;
    refuse_itself(path, to)?;
    let (registrations, copy) = copy_beside(&conn, to)?;
    let moved = match present {
        Present::Keep => copy.persist_noclobber(to),
        Present::Replace => copy.persist(to),
    };
    moved.map_err(|error| failed(to)(error.error))?;
    sync_directory(to)?;
    Ok(registrations)
}

/// Replaces the leases of the registry with the leases of a backup. The backup may have an older
/// schema version. A running server reads the new leases at its next probe. A missing registry is
/// created. One that is damaged or has another schema version is moved aside, never overwritten.
///
/// A lease of the backup keeps its lease id if it is live in the present registry. Any other lease
/// may have ended since the backup, so it gets a new lease id. A container keeps the stricter of its
/// standings in the backup and in the present registry.
pub fn restore(path: &Path, from: &Path) -> Result<Restored, SqliteError> {
    refuse_itself(path, from)?;
    let restored = read_backup(from)?;
    let (moved, registrations) = match check(path) {
        Ok(_) => (None, replace_leases(&mut open_to_write(path)?, restored)?),
        Err(error) if error.is_damage() || matches!(error, SqliteError::Missing(_)) => {
            let moved_to = move_aside(path, &error)?;
            (
                moved_to.map(|moved_to| (moved_to, error)),
                create_with(path, restored)?,
            )
        }
        Err(error) => return Err(error),
    };
    Ok(Restored {
        registrations,
        moved,
    })
}

/// Fails if both paths resolve to the same file. A path that does not resolve is not an error here.
fn refuse_itself(path: &Path, other: &Path) -> Result<(), SqliteError> {
    if let (Ok(registry), Ok(named)) = (fs::canonicalize(path), fs::canonicalize(other))
        && registry == named
    {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "this is the registry itself; name another file",
        );
        return Err(failed(other)(error));
    }
    Ok(())
}

/// The leases of a backup, and the standings of containers without a lease.
struct Contents {
    leases: Vec<Registration>,
    standings: Vec<(ContainerId, Standing)>,
}

/// Reads a backup of the current schema version or an older one. Migrates only a copy in memory.
fn read_backup(backup: &Path) -> Result<Contents, SqliteError> {
    let file = open(backup)?;
    match expect_current(&file, VERSION) {
        Ok(()) | Err(SqliteError::Outdated { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut memory = Connection::open_in_memory()?;
    copy(&file, &mut memory)?;
    verify(&memory, "integrity_check")?;
    migrate(&memory, &MIGRATIONS)?;
    let mut leases = Vec::new();
    row::load(&memory, |lease| leases.push(lease))?;
    let standings = row::kept_standings(&memory)?;
    Ok(Contents { leases, standings })
}

/// Replaces all leases in one transaction. A lease that is not live in the registry gets a new
/// lease id. Returns the number of leases.
fn replace_leases(conn: &mut Connection, restored: Contents) -> Result<usize, SqliteError> {
    let change = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let now = OffsetDateTime::now_utc();
    let mut live = HashSet::new();
    row::load(&change, |lease| {
        if lease.expires_at > now {
            live.insert(lease.lease);
        }
    })?;
    change.execute("DELETE FROM containers", [])?;
    for (id, standing) in restored.standings {
        let standing = standing.and(row::standing(&change, &id)?);
        row::set_standing(&change, &id, standing)?;
    }
    let count = restored.leases.len();
    for mut lease in restored.leases {
        if !live.contains(&lease.lease) {
            lease.lease = LeaseId::generate();
        }
        row::insert(&change, &mut lease)?;
    }
    change.commit()?;
    Ok(count)
}

/// Creates a missing registry atomically, with these leases.
fn create_with(path: &Path, restored: Contents) -> Result<usize, SqliteError> {
    let (mut conn, file) = temporary(path)?;
    migrate(&conn, &MIGRATIONS)?;
    let registrations = replace_leases(&mut conn, restored)?;
    conn.close().map_err(|(_, error)| error)?;
    // The directory's owner runs the server. This process may be root, whose files the server
    // cannot open.
    let directory = fs::metadata(parent(path)).map_err(failed(path))?;
    chown(&file, Some(directory.uid()), Some(directory.gid())).map_err(failed(&file))?;
    file.persist(path)
        .map_err(|error| failed(path)(error.error))?;
    sync_directory(path)?;
    Ok(registrations)
}

/// Moves an unusable file aside and returns its new path; `None` if the file is missing. Moves its
/// journal too, since SQLite would otherwise apply the journal to the new file. An older version of
/// the program may have left a WAL instead of a journal.
fn move_aside(path: &Path, why: &SqliteError) -> Result<Option<PathBuf>, SqliteError> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let now = OffsetDateTime::now_utc();
    let now = now
        .format(format)
        .unwrap_or_else(|_| now.unix_timestamp().to_string());
    let state = match why {
        SqliteError::Schema { found, .. } | SqliteError::Outdated { found, .. } => {
            format!("version-{found}")
        }
        _ => "corrupt".to_owned(),
    };
    let aside = beside(path, &format!(".{state}-{now}"));
    let moved = if_present(path, fs::rename(path, &aside))?;
    for suffix in ["-journal", "-wal"] {
        let journal = beside(path, suffix);
        if_present(&journal, fs::rename(&journal, beside(&aside, suffix)))?;
    }
    let shm = beside(path, "-shm");
    if_present(&shm, fs::remove_file(&shm))?;
    Ok(moved.then_some(aside))
}

/// Returns `false` if an operation failed with `NotFound`, `true` if it succeeded, and any other
/// error with the path.
fn if_present(path: &Path, done: io::Result<()>) -> Result<bool, SqliteError> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Makes a verified copy in a temporary file in the directory of `target`. Returns the number of
/// registrations and the file.
fn copy_beside(from: &Connection, target: &Path) -> Result<(usize, TempPath), SqliteError> {
    let (mut conn, file) = temporary(target)?;
    copy(from, &mut conn)?;
    // The copy must be one file, even if the original uses a WAL.
    conn.execute_batch("PRAGMA journal_mode = DELETE")?;
    verify(&conn, "integrity_check")?;
    let registrations = row::load(&conn, drop)?;
    conn.close().map_err(|(_, error)| error)?;
    Ok((registrations, file))
}

/// Creates an empty database in a temporary file in the directory of `target`.
fn temporary(target: &Path) -> Result<(Connection, TempPath), SqliteError> {
    let file = tempfile::NamedTempFile::new_in(parent(target)).map_err(failed(target))?;
    let file = file.into_temp_path();
    Ok((open(&file)?, file))
}

/// Copies all pages of a database. Fails with [`SqliteError::Busy`] if another process still has
/// the database locked at the last of [`COPY_ATTEMPTS`] attempts.
fn copy(from: &Connection, to: &mut Connection) -> Result<(), SqliteError> {
    let backup = Backup::new(from, to)?;
    for _ in 0..COPY_ATTEMPTS {
        if backup.step(-1)? == StepResult::Done {
            return Ok(());
        }
        std::thread::sleep(COPY_PAUSE);
    }
    Err(SqliteError::Busy)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Flushes the directory of `path`, and with it a rename, to disk.
fn sync_directory(path: &Path) -> Result<(), SqliteError> {
    let directory = File::open(parent(path)).and_then(|directory| directory.sync_all());
    directory.map_err(failed(path))
}
