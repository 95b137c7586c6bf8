//! Ends what time, leases and changed rules end, and deletes what is old.

use std::collections::HashSet;

use addons::contract::LeaseId;
use rusqlite::params;

use super::transaction::{Transaction, integer};
use crate::approvals::bounds::{KEPT_AFTER_DECISION, MAX_DECIDED};
use crate::approvals::record::{News, Record, State};
use crate::sqlite::SqliteError;

/// Selects the closed questions that answer no equal question any more; `?1` is the time.
const OVER: &str = "closed_at IS NOT NULL AND (denied_until IS NULL OR denied_until <= ?1)
    AND NOT EXISTS (
        SELECT 1 FROM grants
        WHERE approval = questions.id AND used_at IS NULL AND ended_at IS NULL
            AND (expires_at IS NULL OR expires_at > ?1))";

impl Transaction<'_> {
    /// See [`ApprovalStore::expire`](crate::approvals::ApprovalStore::expire).
    pub(super) fn expire(&mut self) -> Result<(), SqliteError> {
        // Every operation begins with this query. Without the hint, SQLite reads all open questions.
        let due = "INDEXED BY due_questions WHERE state = 'pending' AND expires_at <= ?1";
        let due = self.records(due, [self.now])?;
        for record in due {
            self.close(record, State::Expired, None, News::Expired)?;
        }
        Ok(())
    }

    /// See [`ApprovalStore::end_leases`](crate::approvals::ApprovalStore::end_leases).
    pub(super) fn end_leases(
        &mut self,
        is_live: &dyn Fn(LeaseId) -> bool,
    ) -> Result<(), SqliteError> {
        let ended = self.leases()?.into_iter().filter(|lease| !is_live(*lease));
        for lease in ended.collect::<Vec<_>>() {
            let lease = lease.to_string();
            let pending = self.records("WHERE state = 'pending' AND lease = ?1", [&lease])?;
            for record in pending {
                self.close(record, State::Ended, None, News::Ended)?;
            }
            let in_force = "WHERE lease = ?2 AND scope <> 'always' AND used_at IS NULL
                AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)";
            for grant in self.select_grants(in_force, params![self.now, lease])? {
                self.end_grant(grant)?;
            }
        }
        Ok(())
    }

    /// The leases with an open question or with a live grant that ends with the lease.
    fn leases(&self) -> Result<HashSet<LeaseId>, SqliteError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT lease FROM questions WHERE state = 'pending'
             UNION SELECT lease FROM grants
                 WHERE scope <> 'always' AND used_at IS NULL AND ended_at IS NULL
                     AND (expires_at IS NULL OR expires_at > ?1)",
        )?;
        let rows = statement.query_and_then([self.now], |row| {
            let lease: String = row.get(0)?;
            let bad = || SqliteError::Row(format!("of lease {lease}"));
            LeaseId::parse(&lease).ok_or_else(bad)
        })?;
        rows.collect()
    }

    /// See [`ApprovalStore::end_outdated`](crate::approvals::ApprovalStore::end_outdated).
    pub(super) fn end_outdated(
        &mut self,
        is_current: &dyn Fn(&Record) -> bool,
    ) -> Result<(), SqliteError> {
        let open_or_unused = "WHERE state = 'pending' OR id IN (
            SELECT approval FROM grants
            WHERE scope = 'once' AND used_at IS NULL AND ended_at IS NULL AND expires_at > ?1)";
        for record in self.records(open_or_unused, [self.now])? {
            if is_current(&record) {
                continue;
            }
            match self.grant_of(record.id)? {
                Some(grant) => drop(self.end_grant(grant)?),
                None => drop(self.close(record, State::Expired, None, News::Expired)?),
            }
        }
        Ok(())
    }

    /// See [`ApprovalStore::prune`](crate::approvals::ApprovalStore::prune).
    pub(super) fn prune(&mut self) -> Result<(), SqliteError> {
        let kept = i64::try_from(KEPT_AFTER_DECISION.as_millis()).unwrap_or(i64::MAX);
        let before = self.now.saturating_sub(kept);
        self.execute(
            &format!("DELETE FROM questions WHERE {OVER} AND closed_at <= ?2"),
            params![self.now, before],
        )?;
        let closed = "SELECT count(*) FROM questions WHERE closed_at IS NOT NULL";
        let excess = self.number(closed, [])?.saturating_sub(MAX_DECIDED);
        if excess > 0 {
            self.execute(
                &format!(
                    "DELETE FROM questions WHERE seq IN (
                         SELECT seq FROM questions WHERE {OVER}
                         ORDER BY state IN ('expired', 'ended') DESC, closed_at LIMIT ?2)"
                ),
                params![self.now, integer(excess)],
            )?;
        }
        // Without questions, `NOT IN` is true also for a grant that answers none.
        self.execute(
            "DELETE FROM grants
             WHERE (approval IS NOT NULL AND approval NOT IN (SELECT id FROM questions))
                 OR (approval IS NULL AND coalesce(ended_at, expires_at) <= ?1)",
            [before],
        )?;
        Ok(())
    }
}
