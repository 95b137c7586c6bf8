//! Asks and lists questions.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{ApprovalId, ContainerId, GrantId, LeaseId, Question, QuestionLimit};
use rusqlite::{OptionalExtension, Params, params};

use super::row::rank_of;
use super::transaction::{Transaction, integer};
use crate::approvals::bounds::{
    MAX_ARGUMENT_BYTES, MAX_KEPT_BYTES, MAX_NEW_PER_WINDOW, MAX_PAGE, MAX_PENDING,
    MAX_PENDING_PER_CONTAINER, MAX_TOPIC_BYTES, RATE_WINDOW,
};
use crate::approvals::record::{Asked, Change, News, Record};
use crate::approvals::store::Filter;
use crate::sqlite::SqliteError;

/// A denied question, and the person's words.
type Denied = (ApprovalId, Option<Arc<str>>);

impl Transaction<'_> {
    /// See [`ApprovalStore::ask`](crate::approvals::ApprovalStore::ask).
    pub(super) fn ask(&mut self, question: &Question, ttl: Duration) -> Result<Asked, SqliteError> {
        if let Some(known) = self.look_up(question)? {
            if let Asked::Open(id) = known {
                let repeated = self.repeated.entry(id).or_default();
                *repeated = repeated.saturating_add(1);
            }
            return Ok(known);
        }
        if let Some(limit) = self.exceeded(question)? {
            return Ok(Asked::Full(limit));
        }
        self.insert(question, ttl).map(Asked::Open)
    }

    /// See [`ApprovalStore::look_up`](crate::approvals::ApprovalStore::look_up).
    pub(super) fn look_up(&self, question: &Question) -> Result<Option<Asked>, SqliteError> {
        if let Some((approval, words)) = self.denial(question)? {
            return Ok(Some(Asked::Denied { approval, words }));
        }
        if let Some(granted) = self.grant_for(question)? {
            return Ok(Some(granted));
        }
        Ok(self.pending(question)?.map(Asked::Open))
    }

    fn denial(&self, question: &Question) -> Result<Option<Denied>, SqliteError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id, comment FROM questions
             WHERE state = 'denied' AND digest = ?1 AND denied_until > ?2
             ORDER BY seq DESC LIMIT 1",
        )?;
        let params = params![question.digest(), self.now];
        let found = statement.query_row(params, |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
        let Some((id, words)) = found.optional()? else {
            return Ok(None);
        };
        Ok(Some((parse(&id)?, words)))
    }

    /// A live grant: one for a time before one for one execution, which stays for other calls.
    fn grant_for(&self, question: &Question) -> Result<Option<Asked>, SqliteError> {
        let topic = question.topic();
        let level = rank_of(topic.level);
        let mut found = self.find_grant(
            "SELECT id, approval FROM grants
             WHERE lease = ?1 AND kind = ?2 AND subject = ?3 AND server IS ?4 AND level >= ?5
                 AND scope IN ('for', 'lease') AND used_at IS NULL AND ended_at IS NULL
                 AND (expires_at IS NULL OR expires_at > ?6)
             ORDER BY seq LIMIT 1",
            params![
                topic.lease.to_string(),
                topic.kind.as_str(),
                topic.subject,
                topic.server,
                level,
                self.now,
            ],
        )?;
        if found.is_none() {
            found = self.find_grant(
                "SELECT id, approval FROM grants
                 WHERE digest = ?1 AND level >= ?2 AND used_at IS NULL AND ended_at IS NULL
                     AND expires_at > ?3
                 ORDER BY seq LIMIT 1",
                params![question.digest(), level, self.now],
            )?;
        }
        Ok(found)
    }

    fn find_grant(&self, query: &str, params: impl Params) -> Result<Option<Asked>, SqliteError> {
        let mut statement = self.conn.prepare_cached(query)?;
        let found = statement.query_row(params, |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
        let Some((id, approval)): Option<(String, Option<String>)> = found.optional()? else {
            return Ok(None);
        };
        let bad = || SqliteError::Row(format!("of grant {id}"));
        Ok(Some(Asked::Granted {
            grant: GrantId::parse(&id).ok_or_else(bad)?,
            approval: approval.map(|approval| parse(&approval)).transpose()?,
        }))
    }

    fn pending(&self, question: &Question) -> Result<Option<ApprovalId>, SqliteError> {
        let found: Option<String> = self.find(
            "SELECT id FROM questions WHERE state = 'pending' AND digest = ?1 AND level >= ?2
             ORDER BY level LIMIT 1",
            params![question.digest(), rank_of(question.topic().level)],
        )?;
        found.map(|id| parse(&id)).transpose()
    }

    /// See [`ApprovalStore::pending`](crate::approvals::ApprovalStore::pending).
    pub(super) fn pending_of(
        &self,
        container: &ContainerId,
        lease: LeaseId,
    ) -> Result<Vec<ApprovalId>, SqliteError> {
        let sql = "SELECT id FROM questions
                   WHERE state = 'pending' AND container = ?1 AND lease = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        let ids = statement.query_map([container.as_str(), &lease.to_string()], |row| {
            row.get::<_, String>(0)
        })?;
        ids.map(|id| parse(&id?)).collect()
    }

    /// The limit that a new question would exceed.
    fn exceeded(&self, question: &Question) -> Result<Option<QuestionLimit>, SqliteError> {
        let arguments = question.arguments().map_or(0, str::len);
        if arguments > MAX_ARGUMENT_BYTES || question.topic().size() > MAX_TOPIC_BYTES {
            return Ok(Some(QuestionLimit::TooLong));
        }
        let container = question.topic().container.as_str();
        let count = "SELECT count(*) FROM questions INDEXED BY pending_of_container
            WHERE state = 'pending' AND container = ?1";
        if self.number(count, [container])? >= MAX_PENDING_PER_CONTAINER {
            return Ok(Some(QuestionLimit::Container));
        }
        let count = "SELECT count(*) FROM questions WHERE state = 'pending'";
        if self.number(count, [])? >= MAX_PENDING {
            return Ok(Some(QuestionLimit::All));
        }
        let window = i64::try_from(RATE_WINDOW.as_millis()).unwrap_or(i64::MAX);
        let new = self.number(
            "SELECT count(*) FROM questions
             WHERE container = ?1 AND created_at > ?2 AND created_at <= ?3",
            params![container, self.now.saturating_sub(window), self.now],
        )?;
        if new >= MAX_NEW_PER_WINDOW {
            return Ok(Some(QuestionLimit::Rate));
        }
        let made = self.make_room(container, arguments)?;
        Ok((!made).then_some(QuestionLimit::Space))
    }

    /// Makes room for the arguments of a new question. If necessary, deletes arguments of decided
    /// questions, first those of the same container, so that a container that floods the ledger
    /// leaves those of others alone. Returns `false` if the open questions leave no room.
    fn make_room(&self, container: &str, bytes: usize) -> Result<bool, SqliteError> {
        let room = MAX_KEPT_BYTES.saturating_sub(bytes);
        let sum = "SELECT sum(argument_bytes) FROM questions WHERE argument_bytes > 0";
        let kept = self.number(sum, [])?;
        if kept <= room {
            return Ok(true);
        }
        if self.number(&format!("{sum} AND state = 'pending'"), [])? > room {
            return Ok(false);
        }
        let mut excess = integer(kept.saturating_sub(room));
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, argument_bytes FROM questions
             WHERE argument_bytes > 0 AND state <> 'pending'
             ORDER BY container = ?1 DESC, closed_at, seq",
        )?;
        let rows = statement.query_map([container], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let closed: Vec<(i64, i64)> = rows.collect::<Result<_, _>>()?;
        for (seq, freed) in closed {
            if excess <= 0 {
                break;
            }
            let forget = "UPDATE questions SET arguments = NULL, argument_bytes = 0 WHERE seq = ?1";
            self.execute(forget, [seq])?;
            excess = excess.saturating_sub(freed);
        }
        Ok(true)
    }

    fn insert(&mut self, question: &Question, ttl: Duration) -> Result<ApprovalId, SqliteError> {
        let id = ApprovalId::generate().ok_or(SqliteError::NoRandomness)?;
        let topic = question.topic();
        self.execute(
            "INSERT INTO questions (id, state, kind, container, lease, server, subject, arguments,
                 argument_bytes, digest, rule, reason, level, revision, created_at, expires_at,
                 attempts)
             VALUES (?1, 'pending', ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
                 1)",
            params![
                id.to_string(),
                topic.kind.as_str(),
                topic.container.as_str(),
                topic.lease.to_string(),
                topic.server,
                topic.subject,
                question.arguments(),
                integer(question.arguments().map_or(0, str::len)),
                question.digest(),
                topic.rule,
                topic.reason,
                rank_of(topic.level),
                topic.revision,
                self.now,
                self.after(ttl),
            ],
        )?;
        self.changes.push(Change {
            approval: Some(id),
            container: topic.container.clone(),
            lease: topic.lease,
            news: News::Opened,
        });
        Ok(id)
    }

    /// See [`ApprovalStore::list`](crate::approvals::ApprovalStore::list).
    pub(super) fn list(&self, filter: &Filter) -> Result<Vec<Record>, SqliteError> {
        let mut sql = "WHERE true".to_owned();
        for (condition, is_set) in [
            (" AND state = ?1", filter.state.is_some()),
            (" AND kind = ?2", filter.kind.is_some()),
            (" AND container = ?3", filter.container.is_some()),
            (
                " AND seq < (SELECT seq FROM questions WHERE id = ?4)",
                filter.before.is_some(),
            ),
        ] {
            if is_set {
                sql.push_str(condition);
            }
        }
        // The highest number, so that a statement always has five parameters.
        sql.push_str(" ORDER BY seq DESC LIMIT ?5");
        let limit = filter.limit.unwrap_or(MAX_PAGE).min(MAX_PAGE);
        self.records(
            &sql,
            params![
                filter.state.map(|state| state.as_str()),
                filter.kind.map(|kind| kind.as_str()),
                filter
                    .container
                    .as_ref()
                    .map(|container| container.as_str()),
                filter.before.map(|id| id.to_string()),
                integer(limit),
            ],
        )
    }
}

fn parse(id: &str) -> Result<ApprovalId, SqliteError> {
    ApprovalId::parse(id).ok_or_else(|| SqliteError::Row(format!("of question {id}")))
}
