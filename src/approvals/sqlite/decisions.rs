//! The decisions of people on questions.

use addons::contract::ApprovalId;
use rusqlite::params;

use super::transaction::Transaction;
use crate::approvals::record::{Decision, News, Record, Scope, State, Target};
use crate::approvals::store::Refused;
use crate::sqlite::SqliteError;

/// The inner error is the operator's: the transaction is committed nevertheless.
type Decided = Result<Result<Record, Refused>, SqliteError>;

impl Transaction<'_> {
    pub(super) fn approve(
        &mut self,
        id: ApprovalId,
        scope: Option<Scope>,
        decision: &Decision,
    ) -> Decided {
        let record = match self.open_question(id)? {
            Ok(record) => record,
            Err(refused) => return Ok(Err(refused)),
        };
        let kind = record.topic.kind;
        let scope = scope.unwrap_or(Scope::default_of(kind));
        if !scope.fits(kind) {
            return Ok(Err(Refused::Scope(kind)));
        }
        let target = Target::from(&record.topic);
        let grant = self.give(target, scope, &decision.by, Some(&record))?;
        let news = News::Approved {
            grant: grant.id,
            once: scope == Scope::Once,
        };
        self.close(record, State::Approved, Some(decision), news)
            .map(Ok)
    }

    pub(super) fn deny(&mut self, id: ApprovalId, decision: &Decision) -> Decided {
        let record = match self.open_question(id)? {
            Ok(record) => record,
            Err(refused) => return Ok(Err(refused)),
        };
        let news = News::Denied(decision.comment.clone());
        self.close(record, State::Denied, Some(decision), news)
            .map(Ok)
    }

    pub(super) fn forget(&mut self, id: ApprovalId) -> Decided {
        let Some(mut record) = self.record(id)? else {
            return Ok(Err(Refused::Unknown));
        };
        let forget = "UPDATE questions SET denied_until = NULL WHERE id = ?1 AND denied_until > ?2";
        if self.execute(forget, params![id.to_string(), self.now])? == 0 {
            return Ok(Err(Refused::NotDenied));
        }
        record.denied_until = None;
        self.tell(&record, News::Forgotten);
        Ok(Ok(record))
    }

    /// The question, if a person can decide it.
    fn open_question(&self, id: ApprovalId) -> Decided {
        let Some(record) = self.record(id)? else {
            return Ok(Err(Refused::Unknown));
        };
        Ok(match record.state {
            State::Pending => Ok(record),
            State::Approved | State::Used | State::Denied => {
                Err(Refused::Decided(Box::new(record)))
            }
            State::Expired | State::Ended => Err(Refused::Over(Box::new(record))),
        })
    }
}
