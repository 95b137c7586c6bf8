//! The policy that people set: proposals of agents, and the change of the policy in force.

use std::io;
use std::sync::Arc;

use addons::contract::{
    ApprovalAnswer, ApprovalId, Container, Question, QuestionKind, QuestionLimit, Topic,
};
use addons::json::{ObjectText, sha256_hex};
use serde_json::value::RawValue;
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Mutex;
use tokio::task::block_in_place;

use super::loading::check;
use crate::approvals::{Decision, Ledger, Record, Refused, State, StoreError};
use crate::config::{Prepared, StoredPolicy, StoredPolicyFile};
use crate::snapshot::Snapshot;

/// The longest policy that can be proposed or set, in bytes. A question has room for two of them.
pub const MAX_SOURCE: usize = 64 << 10;
/// What asks, in a question about a proposal.
const RULE: &str = "propose_policy";

/// Returns the snapshot in force.
type Current = dyn Fn() -> Arc<Snapshot> + Send + Sync;
/// Loads the configuration again.
type Reload = dyn Fn() -> Result<(), Vec<String>> + Send + Sync;

/// Keeps the policy that people set. Changes are made one after the other.
pub struct PolicyKeeper {
    ledger: Arc<Ledger>,
    current: Box<Current>,
    reload: Box<Reload>,
    /// Held during a change of the file.
    changing: Mutex<()>,
}

/// A change of the policy in force, for the audit.
#[derive(Clone, Debug)]
pub struct PolicyChange {
    /// The bundle whose policy changed.
    pub bundle: Arc<str>,
    /// SHA-256 of the text in force, in hexadecimal.
    pub digest: String,
    /// The approved question; `None` if a person set a text, or returned to the bundle.
    pub proposal: Option<ApprovalId>,
}

/// Why a policy was not proposed, or not set.
#[derive(Debug, Error)]
pub enum NotSet {
    #[error("no policy can be replaced: policies.editable in mcp.yaml names no bundle")]
    Off,
    #[error("the policy must be a text of 1 to {MAX_SOURCE} bytes")]
    Length,
    #[error("this is the policy in force already")]
    Same,
    #[error("the policy in force cannot be shown to a person: {0}")]
    NoText(String),
    #[error("the question {0} is not about a policy")]
    NoProposal(ApprovalId),
    #[error(
        "the policy in force has changed since the proposal was made: what a person saw is not what \
         would be in force; propose it again"
    )]
    Outdated,
    #[error("the policy cannot be loaded, so nothing was changed: {0}")]
    Invalid(String),
    #[error("the configuration cannot be reloaded, so nothing was changed: {}", .0.join("; "))]
    Reload(Vec<String>),
    #[error("the policy cannot be stored: {0}")]
    File(#[from] io::Error),
    #[error("no policy is stored: the bundle is in force")]
    NotStored,
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("no person can be asked now: {0}")]
    Full(QuestionLimit),
    #[error("a person denied the same proposal{}", .0.as_ref().map(|words| format!(": {words}")).unwrap_or_default())]
    Denied(Option<Arc<str>>),
    #[error("the server failed; look at its log")]
    Broken,
}

impl From<StoreError> for NotSet {
    fn from(error: StoreError) -> Self {
        Refused::from(error).into()
    }
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
        })
    }

    /// The snapshot in force.
    pub fn current(&self) -> Arc<Snapshot> {
        (self.current)()
    }

    /// Asks a person whether a policy may replace the one in force. The text is not compiled: a
    /// container could otherwise make the server compile at will. Returns the question's id.
    pub async fn propose(&self, container: &Container, source: &str) -> Result<ApprovalId, NotSet> {
        check_length(source)?;
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
            ApprovalAnswer::Full(limit) => Err(NotSet::Full(limit)),
            // An approval sets the policy and leaves no grant.
            ApprovalAnswer::Granted { .. } | ApprovalAnswer::Used => Err(NotSet::Broken),
        }
    }

    /// Whether an open question about a proposal can be approved in this snapshot: it is about the
    /// policy in force, or its own policy is in force and the approval is being recorded. True for other
    /// questions.
    pub fn still_asks(snapshot: &Snapshot, record: &Record) -> bool {
        let is_about_it = is_about(snapshot, &record.topic);
        is_about_it || record.topic.kind != QuestionKind::Policy || is_set(snapshot, record)
    }

    /// Approves a proposal and puts it in force. If that fails, the question is still open, unless
    /// somebody else has decided, and the policy is as before. Otherwise, `done` gets the record and
    /// the change. Done as a whole even if the future is dropped.
    pub async fn approve(
        self: &Arc<Self>,
        id: ApprovalId,
        decision: Decision,
        done: impl FnOnce(&Record, &PolicyChange) + Send + 'static,
    ) -> Result<Record, NotSet> {
        let keeper = Arc::clone(self);
        let approved = tokio::spawn(async move {
            let (record, change) = keeper.approve_now(id, decision).await?;
            done(&record, &change);
            Ok(record)
        });
        approved.await.unwrap_or(Err(NotSet::Broken))
    }

    async fn approve_now(
        &self,
        id: ApprovalId,
        decision: Decision,
    ) -> Result<(Record, PolicyChange), NotSet> {
        let _changing = self.changing.lock().await;
        let record = self.ledger.get(id).await?.ok_or(Refused::Unknown)?;
        let topic = &record.topic;
        if topic.kind != QuestionKind::Policy {
            return Err(NotSet::NoProposal(id));
        }
        let approve = |decision| self.ledger.approve_definition(id, decision, |_| Ok(()));
        if record.state != State::Pending {
            // Refused with who decided.
            approve(decision).await?;
            return Err(NotSet::Broken);
        }
        let snapshot = self.current();
        if is_set(&snapshot, &record) {
            // A crash came between the change and its record.
            let change = PolicyChange {
                bundle: snapshot.policy.editable.clone().unwrap_or_default(),
                digest: snapshot.policy.digest.clone(),
                proposal: Some(id),
            };
            return Ok((approve(decision).await?, change));
        }
        if !is_about(&snapshot, topic) {
            return Err(NotSet::Outdated);
        }
        let source = proposed(&record).ok_or(NotSet::Broken)?;
        let by = decision.by.clone();
        let (before, change) = block_in_place(|| self.put_in_force(source, &by, Some(id)))?;
        let approved = match approve(decision).await {
            Err(Refused::Store(error)) => match self.ledger.get(id).await {
                // A store that took too long may have done it.
                Ok(Some(record)) if record.state == State::Approved => Ok(record),
                _ => Err(Refused::Store(error)),
            },
            approved => approved,
        };
        match approved {
            Ok(record) => Ok((record, change)),
            // For example, the lease has ended in the meantime.
            Err(error) => {
                block_in_place(|| self.restore(before));
                Err(error.into())
            }
        }
    }

    /// Puts a text in force; `done` as in [`Self::approve`].
    pub async fn set(
        self: &Arc<Self>,
        source: String,
        by: Arc<str>,
        done: impl FnOnce(&PolicyChange) + Send + 'static,
    ) -> Result<PolicyChange, NotSet> {
        let keeper = Arc::clone(self);
        let set = tokio::spawn(async move {
            let _changing = keeper.changing.lock().await;
            let set = block_in_place(|| keeper.put_in_force(source, &by, None));
            let (_, change) = set?;
            done(&change);
            Ok(change)
        });
        set.await.unwrap_or(Err(NotSet::Broken))
    }

    /// Removes the stored policy, so that the bundle is in force again. Done as a whole even if the
    /// future is dropped.
    pub async fn reset(
        self: &Arc<Self>,
        done: impl FnOnce(&PolicyChange) + Send + 'static,
    ) -> Result<PolicyChange, NotSet> {
        let keeper = Arc::clone(self);
        let reset = tokio::spawn(async move {
            let _changing = keeper.changing.lock().await;
            let change = block_in_place(|| keeper.reset_now())?;
            done(&change);
            Ok(change)
        });
        reset.await.unwrap_or(Err(NotSet::Broken))
    }

    fn file(&self) -> StoredPolicyFile {
        StoredPolicyFile::of(&self.current().config.proxy.data_dir)
    }

    fn reset_now(&self) -> Result<PolicyChange, NotSet> {
        let file = self.file();
        // A damaged file can be removed, too.
        if matches!(file.read(), Ok(None)) {
            return Err(NotSet::NotStored);
        }
        let bundle = self.current().policy.editable.clone().unwrap_or_default();
        let before = file.unchanged()?;
        file.with(None)?.commit()?;
        if let Err(errors) = (self.reload)() {
            self.restore(before);
            return Err(NotSet::Reload(errors));
        }
        Ok(PolicyChange {
            bundle,
            digest: self.current().policy.digest.clone(),
            proposal: None,
        })
    }

    /// Stores a policy and reloads the configuration. Returns the file as it was, to be restored.
    fn put_in_force(
        &self,
        source: String,
        by: &str,
        proposal: Option<ApprovalId>,
    ) -> Result<(Prepared, PolicyChange), NotSet> {
        check_length(&source)?;
        let snapshot = self.current();
        let policies = &snapshot.config.addons.mcp.policies;
        let editable = policies.editable.as_ref().ok_or(NotSet::Off)?;
        let mut bundles = policies.bundles.iter();
        let bundle = bundles.find(|bundle| bundle.id == *editable);
        check(bundle.ok_or(NotSet::Off)?, &source)
            .map_err(|error| NotSet::Invalid(error.to_string()))?;
        let at = OffsetDateTime::now_utc().format(&Rfc3339);
        let change = PolicyChange {
            bundle: Arc::clone(editable),
            digest: sha256_hex(&source),
            proposal,
        };
        let policy = StoredPolicy::new(editable, source, by, at.unwrap_or_default(), proposal);
        let file = self.file();
        // On disk before the file is changed, so that a full disk cannot prevent its return.
        let before = file.unchanged()?;
        let stored = file.with(Some(&policy))?;
        if let Err(error) = stored.commit() {
            self.restore(before);
            return Err(error.into());
        }
        let failed = match (self.reload)() {
            Err(errors) => NotSet::Reload(errors),
            // `policies.editable` was changed in the meantime.
            Ok(()) if self.current().policy.stored.as_ref() != Some(&policy) => NotSet::Off,
            Ok(()) => return Ok((before, change)),
        };
        self.restore(before);
        Err(failed)
    }

    /// Puts the file back, and the policy in force with it. Another reload may have read the file in
    /// the meantime.
    fn restore(&self, before: Prepared) {
        if let Err(error) = before.commit() {
            tracing::error!(%error, "the stored policy could not be put back: look at it with `unified-proxy mcp policy show`");
        }
        let stored = self.file().read().ok().flatten();
        if self.current().policy.stored != stored {
            // After an error, the check `configuration_current` fails until a reload succeeds.
            let _ = (self.reload)();
        }
    }
}

fn check_length(source: &str) -> Result<(), NotSet> {
    match (1..=MAX_SOURCE).contains(&source.len()) {
        true => Ok(()),
        false => Err(NotSet::Length),
    }
}

/// Whether a question is about the replacement of the policy in force.
fn is_about(snapshot: &Snapshot, topic: &Topic) -> bool {
    let policy = &snapshot.policy;
    policy.editable.as_deref() == Some(&*topic.subject) && *policy.digest == *topic.revision
}

/// Whether the policy of a proposal is in force.
fn is_set(snapshot: &Snapshot, record: &Record) -> bool {
    let stored = snapshot.policy.stored.as_ref();
    let proposal = stored.and_then(|stored| stored.proposal.as_deref());
    let is_loaded = snapshot.policy.problem.is_none();
    is_loaded && proposal.is_some_and(|proposal| *proposal == *record.id.to_string())
}

/// The proposed text of a question.
fn proposed(record: &Record) -> Option<String> {
    let arguments: serde_json::Value = serde_json::from_str(record.arguments.as_deref()?).ok()?;
    Some(arguments.get("new")?.as_str()?.to_owned())
}
