//! The policy that people set: proposals of agents, and the change of the policy in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use addons::contract::{
    ApprovalAnswer, ApprovalId, Container, Question, QuestionKind, QuestionLimit, Topic,
};
use addons::json::ObjectText;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Mutex;
use tokio::task::block_in_place;

use super::change::{MAX_SOURCE, NotSet, PolicyChange};
use super::characters;
use super::loading::check;
use crate::approvals::{Decision, Ledger, Record, Refused, State};
use crate::config::{StoredPolicy, StoredPolicyFile};
use crate::snapshot::Snapshot;

/// What asks, in a question about a proposal.
const RULE: &str = "propose_policy";

/// Returns the snapshot in force.
type Current = dyn Fn() -> Arc<Snapshot> + Send + Sync;
/// Loads the policies again.
type Reload = dyn Fn() -> Result<(), Vec<String>> + Send + Sync;

/// Keeps the policy that people set. Changes are made one after the other, and only forward: nothing
/// is in force that has to be taken back.
///
/// A proposal is first written to a file beside the policy in force, then its approval is recorded in
/// the ledger, then its file replaces the policy in force, which is then loaded. The ledger decides:
/// after a crash or an error at any step, [`PolicyKeeper::settle`] puts the proposal in force if its
/// approval is recorded, and removes its file otherwise.
pub struct PolicyKeeper {
    ledger: Arc<Ledger>,
    current: Box<Current>,
    reload: Box<Reload>,
    /// Held during a change of the files.
    changing: Mutex<()>,
    /// Whether no proposal waits for the record of its approval.
    is_settled: AtomicBool,
    /// The snapshot that was in force when the stored policy could not be loaded, by its generation; 0
    /// if it was loaded. Any later snapshot has it.
    without_stored: AtomicU64,
}

impl PolicyKeeper {
    pub fn new(
        ledger: Arc<Ledger>,
        current: impl Fn() -> Arc<Snapshot> + Send + Sync + 'static,
        reload: impl Fn() -> Result<(), Vec<String>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            current: Box::new(current),
            reload: Box::new(reload),
            changing: Mutex::default(),
            is_settled: AtomicBool::new(true),
            without_stored: AtomicU64::new(0),
        })
    }

    /// The snapshot in force.
    pub fn current(&self) -> Arc<Snapshot> {
        (self.current)()
    }

    /// Asks a person whether a policy may replace the one in force. The text is not compiled: a
    /// container could otherwise make the server compile at will. Returns the question's id.
    pub async fn propose(&self, container: &Container, source: &str) -> Result<ApprovalId, NotSet> {
        check_text(source)?;
        let snapshot = self.current();
        let (bundle, base) = snapshot.policy.base().ok_or(NotSet::Off)?;
        let base = base.map_err(|why| NotSet::NoText(why.clone()))?;
        if **base == *source {
            return Err(NotSet::Same);
        }
        let mut arguments = ObjectText::default();
        arguments.text("new", source);
        arguments.text("old", base);
        let arguments = RawValue::from_string(arguments.end()).map_err(|_| NotSet::Broken)?;
        let topic = Topic {
            lease: container.lease,
            container: container.id.clone(),
            kind: QuestionKind::Policy,
            server: None,
            subject: (&**bundle).into(),
            rule: Some(RULE.into()),
            reason: None,
            level: container.level(),
            // A person who approves has seen the difference from this text.
            revision: snapshot.policy.digest.as_str().into(),
        };
        let question = Question::new(topic, Some(&arguments)).map_err(|_| NotSet::Broken)?;
        let ttl = snapshot.config.proxy.approvals.ttl;
        match self.ledger.ask(question, ttl).await? {
            ApprovalAnswer::Open(id) => Ok(id),
            ApprovalAnswer::Denied { words, .. } => Err(NotSet::Denied(words)),
            ApprovalAnswer::Full(QuestionLimit::TooLong) => Err(NotSet::TooLong),
            ApprovalAnswer::Full(limit) => Err(NotSet::Full(limit)),
            // An approval sets the policy and leaves no grant.
            ApprovalAnswer::Granted { .. } | ApprovalAnswer::Used => Err(NotSet::Broken),
        }
    }

    /// Whether an open question about a proposal is about the policy in force of this snapshot. True for
    /// other questions.
    pub fn still_asks(snapshot: &Snapshot, topic: &Topic) -> bool {
        let policy = &snapshot.policy;
        let is_about_it = policy.editable.as_deref() == Some(&*topic.subject)
            && *policy.digest == *topic.revision;
        is_about_it || topic.kind != QuestionKind::Policy
    }

    /// Whether the last change was completed, so that what people decided is in force.
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed) && self.is_loaded()
    }

    fn is_loaded(&self) -> bool {
        match self.without_stored.load(Ordering::Relaxed) {
            0 => true,
            generation => self.current().generation() != generation,
        }
    }

    /// At the start, before there is a flow: completes or drops the change that a crash interrupted.
    /// `done` as in [`Self::approve`].
    pub async fn settle(&self, done: impl Fn(&PolicyChange)) {
        let _changing = self.changing.lock().await;
        match self.settle_now().await {
            Ok(Some((_, change))) => {
                done(&change);
                // The policy in force was loaded before.
                if let Err(error) = self.load() {
                    tracing::error!(%error, "a policy that a person approved");
                }
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the change of a policy is not completed"),
        }
    }

    /// Approves a proposal and puts it in force. If its approval cannot be recorded, for example since
    /// somebody else has decided, the policy is as before. Otherwise, `done` gets the change. Done as a
    /// whole even if the future is dropped.
    pub async fn approve(
        self: &Arc<Self>,
        id: ApprovalId,
        decision: Decision,
        recorded: impl FnOnce(&Record) + Send + 'static,
        done: impl Fn(&PolicyChange) + Send + Sync + 'static,
    ) -> Result<Record, NotSet> {
        let keeper = Arc::clone(self);
        let approved = tokio::spawn(async move {
            let _changing = keeper.changing.lock().await;
            keeper.settle_before(&done).await?;
            let (record, change) = keeper.approve_now(id, decision).await?;
            recorded(&record);
            done(&change);
            keeper.load()?;
            Ok(record)
        });
        approved.await.unwrap_or(Err(NotSet::Broken))
    }

    async fn approve_now(
        self: &Arc<Self>,
        id: ApprovalId,
        decision: Decision,
    ) -> Result<(Record, PolicyChange), NotSet> {
        let record = self.ledger.get(id).await?.ok_or(Refused::Unknown)?;
        if record.topic.kind != QuestionKind::Policy {
            return Err(NotSet::NoProposal(id));
        }
        if record.state == State::Pending {
            if !Self::still_asks(&self.current(), &record.topic) {
                return Err(NotSet::Outdated);
            }
            let source = proposed(&record).ok_or(NotSet::Broken)?;
            block_in_place(|| {
                let policy = self.checked(source, &decision.by, Some(id))?;
                Ok::<_, NotSet>(self.proposed().write(Some(&policy))?)
            })?;
        }
        let keeper = Arc::clone(self);
        // Called while the question is open, and no decision comes in between.
        let is_current =
            move |record: &Record| match Self::still_asks(&keeper.current(), &record.topic) {
                true => Ok(()),
                false => Err(NotSet::Outdated.to_string()),
            };
        let decided = self.ledger.approve_definition(id, decision, is_current);
        let refused = decided.await.err();
        // Reads what is recorded: a store that took too long may have done it.
        let settled = self.settle_now().await?;
        settled.ok_or_else(|| refused.map_or(NotSet::Broken, NotSet::Refused))
    }

    /// Puts a text in force; `done` as in [`Self::approve`].
    pub async fn set(
        self: &Arc<Self>,
        source: String,
        by: Arc<str>,
        done: impl Fn(&PolicyChange) + Send + Sync + 'static,
    ) -> Result<PolicyChange, NotSet> {
        let keeper = Arc::clone(self);
        let set = tokio::spawn(async move {
            let _changing = keeper.changing.lock().await;
            keeper.settle_before(&done).await?;
            let policy = block_in_place(|| {
                let policy = keeper.checked(source, &by, None)?;
                keeper.in_force().write(Some(&policy))?;
                Ok::<_, NotSet>(policy)
            })?;
            let change = PolicyChange::to(&policy);
            done(&change);
            keeper.load()?;
            Ok(change)
        });
        set.await.unwrap_or(Err(NotSet::Broken))
    }

    /// Removes the stored policy, so that the bundle is in force again; also a proposal whose approval
    /// was interrupted. Done as a whole even if the future is dropped.
    pub async fn reset(
        self: &Arc<Self>,
        done: impl Fn(&PolicyChange) + Send + Sync + 'static,
    ) -> Result<(), NotSet> {
        let keeper = Arc::clone(self);
        let reset = tokio::spawn(async move {
            let _changing = keeper.changing.lock().await;
            let (file, proposed) = (keeper.in_force(), keeper.proposed());
            // A damaged file can be removed, too.
            let before = match (file.read(), proposed.read()) {
                (Ok(None), Ok(None)) => return Err(NotSet::NotStored),
                (before, _) => before.ok().flatten(),
            };
            block_in_place(|| proposed.write(None).and_then(|()| file.write(None)))?;
            let editable = keeper.current().policy.editable.clone();
            done(&PolicyChange {
                bundle: match before {
                    Some(policy) => policy.bundle.into(),
                    None => editable.unwrap_or_default(),
                },
                digest: None,
                proposal: None,
                set_by: Arc::default(),
            });
            keeper.load()
        });
        reset.await.unwrap_or(Err(NotSet::Broken))
    }

    fn in_force(&self) -> StoredPolicyFile {
        StoredPolicyFile::of(&self.current().config.proxy.data_dir)
    }

    fn proposed(&self) -> StoredPolicyFile {
        StoredPolicyFile::proposed(&self.current().config.proxy.data_dir)
    }

    /// Completes an earlier change before the next one.
    async fn settle_before(&self, done: &impl Fn(&PolicyChange)) -> Result<(), NotSet> {
        if let Some((_, change)) = self.settle_now().await? {
            done(&change);
            return self.load();
        }
        match self.is_loaded() {
            true => Ok(()),
            false => self.load(),
        }
    }

    /// Replaces the policy in force with the proposal that is written, and returns it, if its approval is
    /// recorded; otherwise removes the proposal. The policy is not loaded yet.
    async fn settle_now(&self) -> Result<Option<(Record, PolicyChange)>, NotSet> {
        let proposed = self.proposed();
        let Some(policy) = block_in_place(|| proposed.read())? else {
            return Ok(None);
        };
        self.is_settled.store(false, Ordering::Relaxed);
        let record = match policy.proposal.as_deref().and_then(ApprovalId::parse) {
            Some(id) => self.ledger.get(id).await?,
            None => None,
        };
        let is_approved = |record: &Record| {
            record.state == State::Approved
                // Old arguments make room for new ones.
                && self::proposed(record).is_none_or(|source| source == policy.source)
        };
        let Some(record) = record.filter(is_approved) else {
            block_in_place(|| proposed.write(None))?;
            self.is_settled.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        block_in_place(|| proposed.replace(&self.in_force()))?;
        self.is_settled.store(true, Ordering::Relaxed);
        Ok(Some((record, PolicyChange::to(&policy))))
    }

    /// Loads the policy that is stored.
    fn load(&self) -> Result<(), NotSet> {
        let loaded = block_in_place(|| (self.reload)());
        let without_stored = match loaded {
            Ok(()) => 0,
            Err(_) => self.current().generation(),
        };
        self.without_stored.store(without_stored, Ordering::Relaxed);
        loaded.map_err(NotSet::NotLoaded)
    }

    /// A policy that can be loaded in place of the editable bundle.
    fn checked(
        &self,
        source: String,
        by: &str,
        proposal: Option<ApprovalId>,
    ) -> Result<StoredPolicy, NotSet> {
        check_text(&source)?;
        let snapshot = self.current();
        let policies = &snapshot.config.addons.mcp.policies;
        let editable = policies.editable.as_ref().ok_or(NotSet::Off)?;
        let mut bundles = policies.bundles.iter();
        let bundle = bundles.find(|bundle| bundle.id == *editable);
        check(bundle.ok_or(NotSet::Off)?, &source)
            .map_err(|error| NotSet::Invalid(error.to_string()))?;
        let at = OffsetDateTime::now_utc().format(&Rfc3339);
        let at = at.unwrap_or_default();
        Ok(StoredPolicy::new(editable, source, by, at, proposal))
    }
}

/// Refuses a text that is too long, or that a person cannot see as it is.
fn check_text(source: &str) -> Result<(), NotSet> {
    if !(1..=MAX_SOURCE).contains(&source.len()) {
        return Err(NotSet::Length);
    }
    characters::check_shown(source).map_err(NotSet::Characters)
}

/// The proposed text of a question.
fn proposed(record: &Record) -> Option<String> {
    let arguments: serde_json::Value = serde_json::from_str(record.arguments.as_deref()?).ok()?;
    Some(arguments.get("new")?.as_str()?.to_owned())
}
