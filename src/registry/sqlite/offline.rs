//! The registry's file without a running server, or beside one: check, backup, restore.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tempfile::TempPath;
use time::OffsetDateTime;
use time::macros::format_description;

use super::{StoreError, beside, migrate, open, open_to_read, open_to_write, row, verify};

/// How often, and how long apart, a copy is tried while another process writes.
const COPY_ATTEMPTS: u32 = 100;
const COPY_PAUSE: Duration = Duration::from_millis(100);

/// What a restore did.
#[derive(Debug, PartialEq, Eq)]
pub struct Restored {
    /// How many registrations the file holds now.
    pub registrations: usize,
    /// Where the damaged file was moved to, if there was one.
    pub moved_to: Option<PathBuf>,
}

/// Reads the whole file; answers how many registrations it holds.
pub fn check(path: &Path) -> Result<usize, StoreError> {
    let conn = open_to_read(path)?;
    verify(&conn, "integrity_check")?;
    row::load(&conn, drop)
}

/// What becomes of a file in the place of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// It stays, and the backup fails with [`io::ErrorKind::AlreadyExists`].
    Keep,
    /// It is replaced at once or not at all.
    Replace,
}

/// Copies the registry as it is at one moment, also while a server runs, into a file that is
/// complete by itself.
pub fn backup(path: &Path, to: &Path, present: Present) -> Result<usize, StoreError> {
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

/// Puts the content of a backup in place. A running server notices. A damaged registry is moved
/// aside, never overwritten.
pub fn restore(path: &Path, from: &Path) -> Result<Restored, StoreError> {
    check(from)?;
    let backup = open_to_read(from)?;
    match check(path) {
        Ok(_) => restore_into(path, &backup, from),
        Err(error) if error.is_damage() || matches!(error, StoreError::Missing(_)) => {
            let moved_to = move_aside(path)?;
            restore_anew(path, &backup, moved_to)
        }
        Err(error) => Err(error),
    }
}

fn refuse_itself(path: &Path, other: &Path) -> Result<(), StoreError> {
    let canonical = fs::canonicalize(path).map_err(failed(path))?;
    if fs::canonicalize(other).is_ok_and(|other| other == canonical) {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "this is the registry itself");
        return Err(failed(other)(error));
    }
    Ok(())
}

/// Into the living file, which keeps its kind of journal.
fn restore_into(path: &Path, backup: &Connection, from: &Path) -> Result<Restored, StoreError> {
    refuse_itself(path, from)?;
    let mut live = open_to_write(path)?;
    let before = last_lease(&live)?;
    copy(backup, &mut live)?;
    // A lease that was given out since the backup must not be given out again.
    let highest = last_lease(&live)?.max(before);
    live.execute_batch(&format!(
        "PRAGMA journal_mode = DELETE;
         BEGIN IMMEDIATE;
         DELETE FROM sqlite_sequence;
         INSERT INTO sqlite_sequence (name, seq) VALUES ('containers', {highest});
         COMMIT;"
    ))?;
    Ok(Restored {
        registrations: row::load(&live, drop)?,
        moved_to: None,
    })
}

fn restore_anew(
    path: &Path,
    backup: &Connection,
    moved_to: Option<PathBuf>,
) -> Result<Restored, StoreError> {
    let (registrations, copy) = copy_beside(backup, path)?;
    // Whoever owns the directory runs the server; we may be root.
    let directory = fs::metadata(parent(path)).map_err(failed(path))?;
    chown(&copy, Some(directory.uid()), Some(directory.gid())).map_err(failed(&copy))?;
    copy.persist(path)
        .map_err(|error| failed(path)(error.error))?;
    sync_directory(path)?;
    Ok(Restored {
        registrations,
        moved_to,
    })
}

/// Moves a damaged file away, with its journal: SQLite would play that into the new file. Older
/// versions left a WAL.
fn move_aside(path: &Path) -> Result<Option<PathBuf>, StoreError> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let now = OffsetDateTime::now_utc();
    let now = now
        .format(format)
        .unwrap_or_else(|_| now.unix_timestamp().to_string());
    let aside = beside(path, &format!(".corrupt-{now}"));
    let moved = if_present(path, fs::rename(path, &aside))?;
    for suffix in ["-journal", "-wal"] {
        let journal = beside(path, suffix);
        if_present(&journal, fs::rename(&journal, beside(&aside, suffix)))?;
    }
    let shm = beside(path, "-shm");
    if_present(&shm, fs::remove_file(&shm))?;
    Ok(moved.then_some(aside))
}

/// Whether the file was there; any other failure is one.
fn if_present(path: &Path, done: io::Result<()>) -> Result<bool, StoreError> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(path)(error)),
    }
}

/// A complete copy in a temporary file in the directory of `target`.
fn copy_beside(from: &Connection, target: &Path) -> Result<(usize, TempPath), StoreError> {
    let file = tempfile::NamedTempFile::new_in(parent(target)).map_err(failed(target))?;
    let path = file.into_temp_path();
    let mut conn = open(&path)?;
    copy(from, &mut conn)?;
    // One file, without a WAL beside it, whatever the original has.
    conn.execute_batch("PRAGMA journal_mode = DELETE")?;
    migrate(&conn)?;
    verify(&conn, "integrity_check")?;
    let registrations = row::load(&conn, drop)?;
    conn.close().map_err(|(_, error)| error)?;
    Ok((registrations, path))
}

fn copy(from: &Connection, to: &mut Connection) -> Result<(), StoreError> {
    let backup = Backup::new(from, to)?;
    for _ in 0..COPY_ATTEMPTS {
        if backup.step(-1)? == StepResult::Done {
            return Ok(());
        }
        std::thread::sleep(COPY_PAUSE);
    }
    Err(StoreError::Busy)
}

fn last_lease(conn: &Connection) -> Result<i64, StoreError> {
    let highest = conn.query_row(
        "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'containers'",
        [],
        |row| row.get(0),
    )?;
    Ok(highest)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A rename is on disk once its directory is.
fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = File::open(parent(path)).and_then(|directory| directory.sync_all());
    directory.map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Io {
        path: path.clone(),
        source,
    }
}
