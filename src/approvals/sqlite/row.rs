//! Questions and grants as rows of their tables.

use std::time::Duration;

use addons::contract::{ApprovalId, ContainerId, GrantId, LeaseId, Level, QuestionKind, Topic};
use rusqlite::Row;
use time::OffsetDateTime;

use crate::approvals::record::{Decision, Grant, Record, Scope, State, Target};
use crate::sqlite::{SqliteError, from_millis};

/// The columns that [`question`] decodes.
pub(super) const QUESTION: &str = "id, state, kind, container, lease, server, subject, arguments,
    digest, rule, reason, level, revision, created_at, expires_at, attempts, decided_by, comment,
    closed_at, denied_until";

/// The columns that [`grant`] decodes.
pub(super) const GRANT: &str = "id, approval, kind, container, lease, server, subject, level,
    scope, given_by, created_at, expires_at, used_at, ended_at";

/// Decodes a question. `waiting` is 0, since the store does not know who waits.
pub(super) fn question(row: &Row<'_>) -> Result<Record, SqliteError> {
    let id: String = row.get(0)?;
    let bad = || SqliteError::Row(format!("of question {id}"));
    let decided_by: Option<String> = row.get(16)?;
    let comment = row.get(17)?;
    Ok(Record {
        id: ApprovalId::parse(&id).ok_or_else(bad)?,
        state: text(row, 1, State::parse)?.ok_or_else(bad)?,
        topic: Topic {
            kind: text(row, 2, QuestionKind::parse)?.ok_or_else(bad)?,
            container: text(row, 3, ContainerId::parse)?.ok_or_else(bad)?,
            lease: text(row, 4, LeaseId::parse)?.ok_or_else(bad)?,
            server: row.get(5)?,
            subject: row.get(6)?,
            rule: row.get(9)?,
            reason: row.get(10)?,
            level: level(row, 11)?.ok_or_else(bad)?,
            revision: row.get(12)?,
        },
        arguments: row.get(7)?,
        digest: row.get(8)?,
        created_at: from_millis(row.get(13)?).ok_or_else(bad)?,
        expires_at: from_millis(row.get(14)?).ok_or_else(bad)?,
        attempts: u64::try_from(row.get::<_, i64>(15)?).map_err(|_| bad())?,
        waiting: 0,
        decision: decided_by.map(|by| Decision { by, comment }),
        closed_at: time(row, 18)?,
        denied_until: time(row, 19)?,
    })
}

/// Decodes a grant.
pub(super) fn grant(row: &Row<'_>) -> Result<Grant, SqliteError> {
    let id: String = row.get(0)?;
    let bad = || SqliteError::Row(format!("of grant {id}"));
    let approval: Option<String> = row.get(1)?;
    let approval = approval.map(|id| ApprovalId::parse(&id).ok_or_else(bad));
    let created_at = from_millis(row.get(10)?).ok_or_else(bad)?;
    let expires_at = time(row, 11)?;
    let time_limit = || {
        let limit: Option<Duration> = (expires_at? - created_at).try_into().ok();
        limit.map(Scope::For)
    };
    let scope = text(row, 8, |scope| match scope {
        "once" => Some(Scope::Once),
        "for" => time_limit(),
        "lease" => Some(Scope::Lease),
        "always" => Some(Scope::Always),
        _ => None,
    })?;
    Ok(Grant {
        id: GrantId::parse(&id).ok_or_else(bad)?,
        approval: approval.transpose()?,
        target: Target {
            kind: text(row, 2, QuestionKind::parse)?.ok_or_else(bad)?,
            container: text(row, 3, ContainerId::parse)?.ok_or_else(bad)?,
            lease: text(row, 4, LeaseId::parse)?.ok_or_else(bad)?,
            server: row.get(5)?,
            subject: row.get(6)?,
            level: level(row, 7)?.ok_or_else(bad)?,
        },
        scope: scope.ok_or_else(bad)?,
        by: row.get(9)?,
        created_at,
        expires_at,
        used_at: time(row, 12)?,
        ended_at: time(row, 13)?,
    })
}

fn text<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, SqliteError> {
    Ok(parse(&row.get::<_, String>(column)?))
}

fn level(row: &Row<'_>, column: usize) -> Result<Option<Level>, SqliteError> {
    let rank: i64 = row.get(column)?;
    Ok(Level::ALL.into_iter().find(|level| rank_of(*level) == rank))
}

fn time(row: &Row<'_>, column: usize) -> Result<Option<OffsetDateTime>, SqliteError> {
    let millis: Option<i64> = row.get(column)?;
    Ok(millis.and_then(from_millis))
}

/// The level as a number that SQL compares.
pub(super) const fn rank_of(level: Level) -> i64 {
    level as i64
}
