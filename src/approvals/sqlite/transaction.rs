//! A transaction, and the queries that several operations share.

use std::collections::HashMap;
use std::time::Duration;

use addons::contract::ApprovalId;
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, params};
use time::OffsetDateTime;

use super::row::{self, GRANT, QUESTION};
use crate::approvals::record::{Change, Decision, Grant, News, Record, State};
use crate::sqlite::{SqliteError, from_millis};

/// The last millisecond of the year 9999, after which a time has no written form.
const LAST: i64 = 253_402_300_799_999;

/// An operation on the file that is done as a whole or not at all.
pub(super) struct Transaction<'s> {
    pub(super) conn: &'s Connection,
    /// Milliseconds since 1970.
    pub(super) now: i64,
    pub(super) changes: Vec<Change>,
    /// See [`SqliteApprovals`](super::SqliteApprovals).
    pub(super) repeated: &'s mut HashMap<ApprovalId, u64>,
}

impl Transaction<'_> {
    /// Runs a statement. Returns the number of rows that it changed.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Result<usize, SqliteError> {
        Ok(self.conn.prepare_cached(sql)?.execute(params)?)
    }

    /// The first column of the only row; `None` if there is no row.
    pub(super) fn find<T: FromSql>(
        &self,
        sql: &str,
        params: impl Params,
    ) -> Result<Option<T>, SqliteError> {
        let mut statement = self.conn.prepare_cached(sql)?;
        Ok(statement.query_row(params, |row| row.get(0)).optional()?)
    }

    /// A count or a sum; 0 for the sum of no rows.
    pub(super) fn number(&self, sql: &str, params: impl Params) -> Result<usize, SqliteError> {
        let number: Option<Option<i64>> = self.find(sql, params)?;
        Ok(usize::try_from(number.flatten().unwrap_or(0)).unwrap_or(0))
    }

    /// The questions that `rest`, the text after `FROM questions`, selects.
    pub(super) fn records(
        &self,
        rest: &str,
        params: impl Params,
    ) -> Result<Vec<Record>, SqliteError> {
        let sql = format!("SELECT {QUESTION} FROM questions {rest}");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_and_then(params, row::question)?;
        rows.map(|record| {
            let mut record = record?;
            let repeated = self.repeated.get(&record.id).copied().unwrap_or(0);
            record.attempts = record.attempts.saturating_add(repeated);
            Ok(record)
        })
        .collect()
    }

    /// A question; `None` for an unknown id.
    pub(super) fn record(&self, id: ApprovalId) -> Result<Option<Record>, SqliteError> {
        Ok(self.records("WHERE id = ?1", [id.to_string()])?.pop())
    }

    /// The grants that `rest`, the text after `FROM grants`, selects.
    pub(super) fn select_grants(
        &self,
        rest: &str,
        params: impl Params,
    ) -> Result<Vec<Grant>, SqliteError> {
        let sql = format!("SELECT {GRANT} FROM grants {rest}");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_and_then(params, row::grant)?;
        rows.collect()
    }

    /// Adds a change of a question, for those who wait and watch.
    pub(super) fn tell(&mut self, record: &Record, news: News) {
        self.changes.push(Change {
            approval: Some(record.id),
            container: record.topic.container.clone(),
            lease: record.topic.lease,
            news,
        });
    }

    /// Closes an open question, and returns it as it is then.
    pub(super) fn close(
        &mut self,
        mut record: Record,
        state: State,
        decision: Option<&Decision>,
        news: News,
    ) -> Result<Record, SqliteError> {
        self.repeated.remove(&record.id);
        let is_denied = state == State::Denied;
        let denied_until = is_denied.then(|| self.after(record.time_to_decide()));
        record.state = state;
        record.decision = decision.cloned();
        record.closed_at = Some(self.time()?);
        record.denied_until = denied_until.and_then(from_millis);
        self.execute(
            "UPDATE questions SET state = ?2, attempts = ?3, decided_by = ?4, comment = ?5,
                 closed_at = ?6, denied_until = ?7
             WHERE id = ?1 AND state = 'pending'",
            params![
                record.id.to_string(),
                state.as_str(),
                i64::try_from(record.attempts).unwrap_or(i64::MAX),
                decision.map(|decision| &decision.by),
                decision.and_then(|decision| decision.comment.as_ref()),
                self.now,
                denied_until,
            ],
        )?;
        self.tell(&record, news);
        Ok(record)
    }

    /// The time of the operation.
    pub(super) fn time(&self) -> Result<OffsetDateTime, SqliteError> {
        from_millis(self.now).ok_or_else(|| SqliteError::Row("of the present time".to_owned()))
    }

    /// The time that is this long after now, in milliseconds since 1970; at most [`LAST`].
    pub(super) fn after(&self, time: Duration) -> i64 {
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self.now.saturating_add(millis).min(LAST)
    }
}

/// The number as SQLite stores it.
pub(super) fn integer(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
