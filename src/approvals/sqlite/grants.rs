//! Grants: given, used and revoked.

use addons::contract::{ApprovalId, GrantId, LeaseId};
use rusqlite::params;

use super::row::rank_of;
use super::transaction::Transaction;
use crate::approvals::record::{Change, Grant, News, Record, Scope, Target};
use crate::approvals::store::Refused;
use crate::sqlite::{SqliteError, from_millis};

/// Selects the grants that can still answer a question; `?1` is the time.
const LIVE: &str =
    "used_at IS NULL AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)";

impl Transaction<'_> {
    /// Inserts a grant for a question, or for an operator without one.
    pub(super) fn give(
        &self,
        target: Target,
        scope: Scope,
        by: &str,
        question: Option<&Record>,
    ) -> Result<Grant, SqliteError> {
        let id = GrantId::generate().ok_or(SqliteError::NoRandomness)?;
        let expires_at = match (scope, question) {
            (Scope::For(time), _) => Some(self.after(time)),
            (Scope::Once, Some(record)) => Some(self.after(record.time_to_decide())),
            _ => None,
        };
        let digest = question.filter(|_| scope == Scope::Once);
        self.execute(
            "INSERT INTO grants (id, approval, kind, container, lease, server, subject, level,
                 scope, digest, given_by, created_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            params![
                id.to_string(),
                question.map(|record| record.id.to_string()),
                target.kind.as_str(),
                target.container.as_str(),
                target.lease.to_string(),
                target.server,
                target.subject,
                rank_of(target.level),
                scope.as_str(),
                digest.map(|record| &record.digest),
                by,
                self.now,
                expires_at,
            ],
        )?;
        Ok(Grant {
            id,
            approval: question.map(|record| record.id),
            target,
            scope,
            by: by.to_owned(),
            created_at: self.time()?,
            expires_at: expires_at.and_then(from_millis),
            used_at: None,
            ended_at: None,
        })
    }

    /// See [`ApprovalStore::add_grant`](crate::approvals::ApprovalStore::add_grant).
    pub(super) fn add_grant(
        &mut self,
        target: Target,
        scope: Scope,
        by: &str,
    ) -> Result<Result<Grant, Refused>, SqliteError> {
        let needs_no_question = matches!(scope, Scope::For(_) | Scope::Lease);
        if !needs_no_question || !scope.fits(target.kind) {
            return Ok(Err(Refused::Scope(target.kind)));
        }
        let grant = self.give(target, scope, by, None)?;
        self.tell_of(&grant, News::Granted(grant.id));
        Ok(Ok(grant))
    }

    /// See [`ApprovalStore::use_grant`](crate::approvals::ApprovalStore::use_grant).
    pub(super) fn use_grant(&mut self, id: GrantId, lease: LeaseId) -> Result<bool, SqliteError> {
        let found = self.select_grants(
            &format!("WHERE {LIVE} AND id = ?2 AND lease = ?3"),
            params![self.now, id.to_string(), lease.to_string()],
        )?;
        let Some(grant) = found.into_iter().next() else {
            return Ok(false);
        };
        if grant.scope != Scope::Once {
            return Ok(true);
        }
        let mark = "UPDATE grants SET used_at = ?2 WHERE id = ?1 AND used_at IS NULL";
        if self.execute(mark, params![id.to_string(), self.now])? == 0 {
            return Ok(false);
        }
        let approval = grant.approval.map(|approval| approval.to_string());
        let mark = "UPDATE questions SET state = 'used' WHERE id = ?1 AND state = 'approved'";
        self.execute(mark, [approval])?;
        self.tell_of(&grant, News::Used(id));
        Ok(true)
    }

    /// See [`ApprovalStore::grant_of`](crate::approvals::ApprovalStore::grant_of).
    pub(super) fn grant_of(&self, id: ApprovalId) -> Result<Option<Grant>, SqliteError> {
        let live = format!("WHERE {LIVE} AND approval = ?2");
        Ok(self
            .select_grants(&live, params![self.now, id.to_string()])?
            .pop())
    }

    /// See [`ApprovalStore::grants`](crate::approvals::ApprovalStore::grants).
    pub(super) fn grants(&self) -> Result<Vec<Grant>, SqliteError> {
        self.select_grants(&format!("WHERE {LIVE} ORDER BY seq DESC"), [self.now])
    }

    /// See [`ApprovalStore::revoke`](crate::approvals::ApprovalStore::revoke).
    pub(super) fn revoke(&mut self, id: GrantId) -> Result<Result<Grant, Refused>, SqliteError> {
        let Some(grant) = self.select_grants("WHERE id = ?1", [id.to_string()])?.pop() else {
            return Ok(Err(Refused::Unknown));
        };
        if !grant.is_live(self.time()?) {
            return Ok(Err(Refused::GrantOver));
        }
        self.end_grant(grant).map(Ok)
    }

    /// Ends a live grant, and returns it as it is then.
    pub(super) fn end_grant(&mut self, mut grant: Grant) -> Result<Grant, SqliteError> {
        let end = "UPDATE grants SET ended_at = ?2 WHERE id = ?1";
        self.execute(end, params![grant.id.to_string(), self.now])?;
        grant.ended_at = Some(self.time()?);
        self.tell_of(&grant, News::GrantEnded(grant.id));
        Ok(grant)
    }

    fn tell_of(&mut self, grant: &Grant, news: News) {
        self.changes.push(Change {
            approval: grant.approval,
            container: grant.target.container.clone(),
            lease: grant.target.lease,
            news,
        });
    }
}
