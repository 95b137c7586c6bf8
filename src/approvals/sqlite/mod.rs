//! The approval store in a SQLite file.
//!
//! One connection stays open between operations. Before each one, the store checks that the path
//! still names the open file, since a change to a file that was deleted or replaced would be lost.
//! After any error, the connection is closed, and the next operation opens the file again, and checks
//! it if damage can have caused the error.

mod check;
mod decisions;
mod grants;
mod questions;
mod row;
mod schema;
mod transaction;
mod upkeep;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use addons::contract::{ApprovalId, ContainerId, GrantId, LeaseId, Question};
use rusqlite::Connection;
use time::OffsetDateTime;

use super::record::{Asked, Change, Decision, Grant, Record, Scope, Target};
use super::store::{ApprovalStore, Filter, Refused, StoreError};
use crate::sqlite::{
    SqliteError, create_if_missing, expect_current, failed, migrate, open_to_write, to_millis,
};
use check::{Checks, FileId, id_of};
use schema::{MIGRATIONS, VERSION};
use transaction::Transaction;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "approvals.db";

/// The cache of pages in KiB (negative: see SQLite's documentation of `cache_size`): holds the
/// indexes that a question is looked up in.
const CACHE: i64 = -1024;

/// The statements that stay compiled: more than there are.
const STATEMENTS: usize = 64;

/// Questions and grants in one SQLite file.
pub struct SqliteApprovals {
    path: PathBuf,
    /// Whether the file was created and migrated since the start.
    is_made: bool,
    open: Option<OpenFile>,
    checks: Checks,
    /// Changes that nobody has taken yet.
    changes: Vec<Change>,
    /// Repetitions of open questions that are not in the file yet. They are written when the
    /// question is closed, so that a container that repeats a question writes nothing to the disk.
    repeated: HashMap<ApprovalId, u64>,
}

struct OpenFile {
    conn: Connection,
    file: FileId,
}

impl SqliteApprovals {
    /// Returns the store in this file. [`ApprovalStore::open`] creates the file if it is missing.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            is_made: false,
            open: None,
            checks: Checks::default(),
            changes: Vec::new(),
            repeated: HashMap::new(),
        }
    }

    /// Takes the open file, if the path still names it, or opens the one that it names.
    fn take_open(&mut self) -> Result<OpenFile, SqliteError> {
        if !self.is_made {
            self.make()?;
        }
        let found = self.find()?;
        let file = id_of(&found);
        if let Some(open) = self.open.take().filter(|open| open.file == file) {
            return Ok(open);
        }
        let conn = open_to_write(&self.path)?;
        expect_current(&conn, VERSION)?;
        self.checks.check(&conn, &found)?;
        conn.pragma_update(None, "cache_size", CACHE)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(OpenFile { conn, file })
    }

    /// Creates the file if it is missing, and migrates it.
    fn make(&mut self) -> Result<(), SqliteError> {
        create_if_missing(&self.path)?;
        let conn = open_to_write(&self.path)?;
        let found = self.find()?;
        self.checks.check(&conn, &found)?;
        migrate(&conn, &MIGRATIONS)?;
        expect_current(&conn, VERSION)?;
        self.is_made = true;
        Ok(())
    }

    /// The metadata of the file that the path names.
    fn find(&self) -> Result<fs::Metadata, SqliteError> {
        fs::metadata(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => SqliteError::Missing(self.path.clone()),
            _ => failed(&self.path)(error),
        })
    }

    /// Runs an operation in a transaction, after the questions whose time is over have expired. The
    /// changes are on disk when this returns.
    fn run<T>(
        &mut self,
        now: OffsetDateTime,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<T, SqliteError>,
    ) -> Result<T, StoreError> {
        let done = self.try_run(now, operation);
        done.map_err(|error| {
            self.checks.note(&error);
            StoreError(error.into())
        })
    }

    fn try_run<T>(
        &mut self,
        now: OffsetDateTime,
        operation: impl FnOnce(&mut Transaction<'_>) -> Result<T, SqliteError>,
    ) -> Result<T, SqliteError> {
        let open = self.take_open()?;
        open.conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut transaction = Transaction {
            conn: &open.conn,
            now: to_millis(now),
            changes: Vec::new(),
            repeated: &mut self.repeated,
        };
        transaction.expire()?;
        let done = operation(&mut transaction)?;
        let changes = transaction.changes;
        open.conn.execute_batch("COMMIT")?;
        self.changes.extend(changes);
        self.open = Some(open);
        Ok(done)
    }
}

impl fmt::Display for SqliteApprovals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl ApprovalStore for SqliteApprovals {
    fn open(&mut self) -> Result<(), StoreError> {
        self.make().map_err(|error| StoreError(error.into()))
    }

    fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    fn ask(
        &mut self,
        question: &Question,
        ttl: Duration,
        now: OffsetDateTime,
    ) -> Result<Asked, StoreError> {
        self.run(now, |transaction| transaction.ask(question, ttl))
    }

    fn look_up(
        &mut self,
        question: &Question,
        now: OffsetDateTime,
    ) -> Result<Option<Asked>, StoreError> {
        self.run(now, |transaction| transaction.look_up(question))
    }

    fn get(&mut self, id: ApprovalId, now: OffsetDateTime) -> Result<Option<Record>, StoreError> {
        self.run(now, |transaction| transaction.record(id))
    }

    fn list(&mut self, filter: &Filter, now: OffsetDateTime) -> Result<Vec<Record>, StoreError> {
        self.run(now, |transaction| transaction.list(filter))
    }

    fn pending(
        &mut self,
        container: &ContainerId,
        lease: LeaseId,
        now: OffsetDateTime,
    ) -> Result<Vec<ApprovalId>, StoreError> {
        self.run(now, |transaction| transaction.pending_of(container, lease))
    }

    fn approve(
        &mut self,
        id: ApprovalId,
        scope: Option<Scope>,
        decision: &Decision,
        now: OffsetDateTime,
    ) -> Result<Record, Refused> {
        self.run(now, |transaction| transaction.approve(id, scope, decision))?
    }

    fn deny(
        &mut self,
        id: ApprovalId,
        decision: &Decision,
        now: OffsetDateTime,
    ) -> Result<Record, Refused> {
        self.run(now, |transaction| transaction.deny(id, decision))?
    }

    fn forget(&mut self, id: ApprovalId, now: OffsetDateTime) -> Result<Record, Refused> {
        self.run(now, |transaction| transaction.forget(id))?
    }

    fn use_grant(
        &mut self,
        id: GrantId,
        lease: LeaseId,
        now: OffsetDateTime,
    ) -> Result<bool, StoreError> {
        self.run(now, |transaction| transaction.use_grant(id, lease))
    }

    fn grant_of(
        &mut self,
        id: ApprovalId,
        now: OffsetDateTime,
    ) -> Result<Option<Grant>, StoreError> {
        self.run(now, |transaction| transaction.grant_of(id))
    }

    fn grants(&mut self, now: OffsetDateTime) -> Result<Vec<Grant>, StoreError> {
        self.run(now, |transaction| transaction.grants())
    }

    fn add_grant(
        &mut self,
        target: Target,
        scope: Scope,
        by: &str,
        now: OffsetDateTime,
    ) -> Result<Grant, Refused> {
        self.run(now, |transaction| transaction.add_grant(target, scope, by))?
    }

    fn revoke(&mut self, id: GrantId, now: OffsetDateTime) -> Result<Grant, Refused> {
        self.run(now, |transaction| transaction.revoke(id))?
    }

    fn end_leases(
        &mut self,
        is_live: &dyn Fn(LeaseId) -> bool,
        now: OffsetDateTime,
    ) -> Result<(), StoreError> {
        self.run(now, |transaction| transaction.end_leases(is_live))
    }

    fn end_outdated(
        &mut self,
        is_current: &dyn Fn(&Record) -> bool,
        now: OffsetDateTime,
    ) -> Result<(), StoreError> {
        self.run(now, |transaction| transaction.end_outdated(is_current))
    }

    fn expire(&mut self, now: OffsetDateTime) -> Result<(), StoreError> {
        self.run(now, |_| Ok(()))
    }

    fn prune(&mut self, now: OffsetDateTime) -> Result<(), StoreError> {
        self.run(now, |transaction| transaction.prune())
    }
}
