//! Approvals for every container: written to `learned.yaml`, put into force, then recorded.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use addons::contract::{
    ApprovalId, GrantId, Host, Learned, LearnedHost, QuestionKind, is_public_name,
};
use thiserror::Error;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::task::block_in_place;

use super::ledger::Ledger;
use super::live::LiveGrants;
use super::record::{Decision, Record, Scope, State};
use super::store::{Refused, StoreError};
use crate::config::{ConfigErrors, LearnedFile, MAX_LEARNED, Prepared};

/// Returns the file; `None` while `approvals.learned` is off.
type File = dyn Fn() -> Option<LearnedFile> + Send + Sync;
/// Reloads the configuration, with the file; returns all errors.
type Reload = dyn Fn() -> Result<(), Vec<String>> + Send + Sync;

/// Approves hosts for every container, and takes that back.
///
/// An approval is first written, then put into force by a reload, then recorded in the ledger. The
/// entry has its author, time and question, so after a crash [`Learner::settle`] completes it if
/// the question is still open, and removes it if the question was closed otherwise.
pub struct Learner {
    ledger: Arc<Ledger>,
    grants: Arc<LiveGrants>,
    file: Box<File>,
    reload: Box<Reload>,
    /// Held during a change of the file.
    changing: Mutex<()>,
}

/// Why a host was not approved for every container, or why that was not taken back.
#[derive(Debug, Error)]
pub enum NotLearned {
    #[error(
        "no host is approved for everyone here: approvals.learned is off in proxy.yaml, or this is \
         the appliance of a run, whose state ends with it (`run --learn` keeps hosts); approve with \
         another scope"
    )]
    Off,
    #[error(
        "learned.yaml has {} entries or 1 MiB already: take entries over to allowlist.yaml with \
         `unified-proxy approvals learned --patch`, and revoke them",
        MAX_LEARNED
    )]
    Full,
    #[error("learned.yaml is damaged, repair or remove it: {0}")]
    Damaged(#[from] ConfigErrors),
    #[error("the configuration cannot be reloaded, so nothing was approved: {}", .0.join("; "))]
    Reload(Vec<String>),
    #[error("learned.yaml cannot be written: {0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the server failed; look at its log")]
    Broken,
}

impl From<StoreError> for NotLearned {
    fn from(error: StoreError) -> Self {
        Refused::from(error).into()
    }
}

impl Learner {
    pub fn new(
        ledger: Arc<Ledger>,
        grants: Arc<LiveGrants>,
        file: impl Fn() -> Option<LearnedFile> + Send + Sync + 'static,
        reload: impl Fn() -> Result<(), Vec<String>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            grants,
            file: Box::new(file),
            reload: Box::new(reload),
            changing: Mutex::default(),
        })
    }

    /// Whether hosts can be approved for every container.
    pub fn is_on(&self) -> bool {
        (self.file)().is_some()
    }

    /// The hosts that are in force.
    pub fn learned(&self) -> Arc<Learned> {
        self.grants.learned()
    }

    /// Approves the question about a host for every container. If that fails, the question is still
    /// open, unless somebody else has decided, and the file is as before. Otherwise, `done` gets the
    /// record. Done as a whole even if the future is dropped.
    pub async fn approve(
        self: &Arc<Self>,
        id: ApprovalId,
        decision: Decision,
        done: impl FnOnce(&Record) + Send + 'static,
    ) -> Result<Record, NotLearned> {
        let learner = Arc::clone(self);
        let approved =
            tokio::spawn(async move { learner.approve_now(id, decision).await.inspect(done) });
        approved.await.unwrap_or(Err(NotLearned::Broken))
    }

    async fn approve_now(&self, id: ApprovalId, decision: Decision) -> Result<Record, NotLearned> {
        let _changing = self.changing.lock().await;
        let record = self.ledger.get(id).await?.ok_or(Refused::Unknown)?;
        if record.state != State::Pending {
            // Refused with who decided.
            return Ok(self
                .ledger
                .approve(id, Some(Scope::Always), decision)
                .await?);
        }
        if !self.is_on() {
            return Err(NotLearned::Off);
        }
        let learned = learned_of(&record, &decision).ok_or(Refused::Scope(record.topic.kind))?;
        let mut replaced = None;
        let before = block_in_place(|| {
            let before = self.change(|hosts| {
                let mut max_level = learned.max_level;
                hosts.retain(|one| {
                    let is_other = (&one.host, one.port) != (&learned.host, learned.port);
                    if !is_other {
                        // An approval takes nothing back.
                        max_level = max_level.max(one.max_level);
                        replaced = Some(one.question);
                    }
                    is_other
                });
                hosts.push(LearnedHost {
                    max_level,
                    ..learned
                });
            })?;
            // An attempt that failed has refused it.
            self.grants.accept(id);
            let failed = match (self.reload)() {
                Err(errors) => NotLearned::Reload(errors),
                // `approvals.learned` was switched off in proxy.yaml in the meantime.
                Ok(()) if !self.is_in_force(id) => NotLearned::Off,
                Ok(()) => return Ok(before),
            };
            restore(before);
            Err(failed)
        });
        // Another reload may have read the file in between.
        let before = before.inspect_err(|_| self.grants.refuse(id))?;
        let approved = match self.ledger.approve(id, Some(Scope::Always), decision).await {
            Err(Refused::Store(error)) => {
                let record = self.approved_nevertheless(id).await;
                record.ok_or(Refused::Store(error))
            }
            approved => approved,
        };
        match &approved {
            Ok(_) => {
                self.end_records(|approval| Some(approval) == replaced)
                    .await
            }
            // For example, the lease has ended in the meantime.
            Err(_) => block_in_place(|| {
                restore(before);
                // If this fails, an entry that was replaced is in force again after the next reload.
                let _ = (self.reload)();
                self.grants.refuse(id);
            }),
        }
        Ok(approved?)
    }

    fn is_in_force(&self, id: ApprovalId) -> bool {
        self.grants.learned().iter().any(|one| one.question == id)
    }

    /// The question, if its approval is recorded: a store that took too long may have done it.
    async fn approved_nevertheless(&self, id: ApprovalId) -> Option<Record> {
        self.recorded().await.ok()?.get(&id)?;
        self.ledger.get(id).await.ok()?
    }

    /// Takes back what was approved for every container: removes the entry of this question.
    /// Returns the entry, which `done` gets, too; `None` if there is none. It is over even if the
    /// reload fails, so that a mistake in another file does not keep a host open. Done as a whole
    /// even if the future is dropped.
    pub async fn revoke(
        self: &Arc<Self>,
        id: ApprovalId,
        done: impl FnOnce(&LearnedHost) + Send + 'static,
    ) -> Result<Option<LearnedHost>, NotLearned> {
        let learner = Arc::clone(self);
        let revoked = tokio::spawn(async move {
            let revoked = learner.revoke_now(id).await;
            if let Ok(Some(found)) = &revoked {
                done(found);
            }
            revoked
        });
        revoked.await.unwrap_or(Err(NotLearned::Broken))
    }

    async fn revoke_now(&self, id: ApprovalId) -> Result<Option<LearnedHost>, NotLearned> {
        let _changing = self.changing.lock().await;
        let in_force = self.grants.learned();
        let Some(found) = in_force.iter().find(|one| one.question == id).cloned() else {
            return Ok(None);
        };
        block_in_place(|| {
            self.change(|hosts| hosts.retain(|one| one.question != id))?;
            // Before the entry ends, so that a tunnel to a host that allowlist.yaml has now lives on.
            let _ = (self.reload)();
            self.grants.refuse(id);
            Ok::<_, NotLearned>(())
        })?;
        self.end_records(|approval| approval == id).await;
        Ok(Some(found))
    }

    /// Puts the hosts of the file into force at the start, before there is a flow. Completes and
    /// takes back what a crash interrupted, and ends the records of entries that are gone.
    pub async fn settle(&self, learned: &Learned) {
        if !self.is_on() {
            return;
        }
        let _changing = self.changing.lock().await;
        let Ok(recorded) = self.recorded().await else {
            // Logged by the ledger. The entries are decisions of their own.
            self.grants.learn(Arc::new(learned.clone()));
            return;
        };
        let mut lost = Vec::new();
        for one in learned
            .iter()
            .filter(|one| !recorded.contains_key(&one.question))
        {
            if !self.complete(one).await {
                tracing::warn!(approval = %one.question, host = %one.host, port = one.port, "removed from learned.yaml: its question was not approved");
                lost.push(one.question);
                self.grants.refuse(one.question);
            }
        }
        let is_kept = |one: &LearnedHost| !lost.contains(&one.question);
        if !lost.is_empty()
            && let Err(error) = block_in_place(|| self.change(|hosts| hosts.retain(is_kept)))
        {
            tracing::error!(%error, "hosts that were not approved stay in learned.yaml, not in force");
        }
        self.grants.learn(Arc::new(learned.clone()));
        self.end_records(|id| !self.is_in_force(id)).await;
    }

    /// Records an approval that was written before a crash. `false`: its question was closed
    /// otherwise. An entry whose question is unknown stays: the ledger may have been lost. So does
    /// one whose approval cannot be recorded now.
    async fn complete(&self, one: &LearnedHost) -> bool {
        match self.ledger.get(one.question).await {
            Ok(Some(record)) if record.state == State::Pending && is_about(&record, one) => {
                let decision = Decision {
                    by: one.author.to_string(),
                    comment: None,
                };
                let always = Some(Scope::Always);
                match self.ledger.approve(one.question, always, decision).await {
                    Ok(_) => {
                        tracing::info!(approval = %one.question, host = %one.host, port = one.port, "completed an approval for every container that a crash interrupted");
                        true
                    }
                    Err(error) => !matches!(error, Refused::Decided(_) | Refused::Over(_)),
                }
            }
            Ok(Some(_)) => false,
            Ok(None) | Err(_) => true,
        }
    }

    /// Changes the entries of the file. Returns the file as it was, to be restored.
    fn change(&self, change: impl FnOnce(&mut Vec<LearnedHost>)) -> Result<Prepared, NotLearned> {
        let file = (self.file)().ok_or(NotLearned::Off)?;
        let mut hosts = file.read()?;
        // On disk before the file is changed, so that a full disk cannot prevent its return.
        let before = file.unchanged()?;
        change(&mut hosts);
        let after = file.with(&hosts)?.ok_or(NotLearned::Full)?;
        match after.commit() {
            Ok(()) => Ok(before),
            Err(error) => {
                restore(before);
                Err(error.into())
            }
        }
    }

    /// The records of approvals of hosts for every container, by their questions.
    async fn recorded(&self) -> Result<HashMap<ApprovalId, GrantId>, StoreError> {
        let grants = self.ledger.grants().await?.into_iter();
        let always = grants.filter(|grant| {
            grant.scope == Scope::Always && grant.target.kind == QuestionKind::Host
        });
        Ok(always
            .filter_map(|grant| Some((grant.approval?, grant.id)))
            .collect())
    }

    /// Ends the records of approvals for every container that are no longer in force. After an
    /// error, the next start does it.
    async fn end_records(&self, is_over: impl Fn(ApprovalId) -> bool) {
        let recorded = self.recorded().await.unwrap_or_default();
        for (_, grant) in recorded.into_iter().filter(|(id, _)| is_over(*id)) {
            let _ = self.ledger.revoke(grant).await;
        }
    }
}

/// Puts the file back. An error is logged: the entry that stays is settled at the next start.
fn restore(before: Prepared) {
    if let Err(error) = before.commit() {
        tracing::error!(%error, "learned.yaml could not be put back");
    }
}

/// The entry that a decision about a question adds; `None` if the question is not about a host.
fn learned_of(record: &Record, decision: &Decision) -> Option<LearnedHost> {
    let topic = &record.topic;
    let (host, port) = topic.subject.rsplit_once(':')?;
    let host = Host::parse(host).ok().filter(is_public_name)?;
    let is_host = topic.kind == QuestionKind::Host;
    Some(LearnedHost {
        host,
        port: port.parse().ok().filter(|_| is_host)?,
        max_level: topic.level,
        author: decision.by.as_str().into(),
        time: OffsetDateTime::now_utc(),
        question: record.id,
    })
}

fn is_about(record: &Record, one: &LearnedHost) -> bool {
    let topic = &record.topic;
    topic.kind == QuestionKind::Host && *topic.subject == *format!("{}:{}", one.host, one.port)
}
