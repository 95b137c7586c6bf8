//! The ledger: the store, the callers that wait for its decisions, and those who watch it.

use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ApprovalOutcome, Container, GrantId, LeaseId, Question,
    QuestionKind, Topic,
};
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::bounds::{MAX_QUEUED, STORE_LIMIT};
use super::record::{Asked, Change, Decision, Grant, News, Record, Scope, State, Target};
use super::store::{ApprovalStore, Filter, Refused, StoreError};
use super::waiters::{Clock, Waiters};
use super::watch::{Watch, Watchers};

/// The live leases; `None` while they are unknown.
pub type LiveLeases = dyn Fn() -> Option<HashSet<LeaseId>> + Send + Sync;

/// How often questions and leases are checked for their end.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How often old questions are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// Questions that people decide, and the grants that they give.
///
/// One thread does all operations, in the order of the calls, so that no caller can hold up others.
/// The change of an operation is on disk before its future is ready. If the future is dropped, the
/// operation is done as a whole or not at all. [`StoreError`] means that the ledger cannot be read
/// or written, or not within [`STORE_LIMIT`]; a flow that needs it must be denied.
pub struct Ledger {
    operations: SyncSender<Slot>,
    waiters: Arc<Waiters>,
    watchers: Arc<Watchers>,
    /// The name of the store.
    name: String,
    /// Whether the latest operation failed, so that a lasting problem is logged once.
    failing: AtomicBool,
}

type Operation = Box<dyn FnOnce(&mut dyn ApprovalStore, OffsetDateTime) + Send>;

/// The place of an operation in the queue; empty once it was begun or withdrawn.
type Slot = Arc<Mutex<Option<Operation>>>;

/// Withdraws an operation when its caller has gone, also because the store takes too long. So a
/// container cannot fill the memory with questions while the disk hangs.
struct Withdraw(Slot);

impl Drop for Withdraw {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl Ledger {
    /// Opens the store, or creates it if it is missing. While the store cannot be read or written,
    /// every operation fails. Blocks; call it at start. Fails only if no thread can be started.
    pub fn open(mut store: impl ApprovalStore + 'static, clock: Clock) -> io::Result<Arc<Self>> {
        let (operations, queue) = mpsc::sync_channel(MAX_QUEUED);
        let ledger = Arc::new(Self {
            operations,
            waiters: Waiters::new(Arc::clone(&clock)),
            watchers: Arc::new(Watchers::new()),
            name: store.to_string(),
            failing: AtomicBool::new(false),
        });
        ledger.log(store.open().as_ref().err());
        let (waiters, watchers) = (Arc::clone(&ledger.waiters), Arc::clone(&ledger.watchers));
        thread::Builder::new()
            .name("approvals".to_owned())
            .spawn(move || work(&queue, store, &clock, &waiters, &watchers))?;
        Ok(ledger)
    }

    /// Answers a question, or opens it for `ttl` if it is new. A new question about a definition
    /// expires the lease's open ones about other definitions of the same tool: a server that changes
    /// its definitions again and again would fill the queue with questions of no use.
    pub async fn ask(
        &self,
        question: Question,
        ttl: Duration,
    ) -> Result<ApprovalAnswer, StoreError> {
        let waiters = Arc::clone(&self.waiters);
        self.with(move |store, now| {
            let topic = question.topic();
            if topic.kind == QuestionKind::Definition && store.look_up(&question, now)?.is_none() {
                store.end_outdated(&|record: &Record| !is_replaced(&record.topic, topic), now)?;
            }
            Ok(answer(store.ask(&question, ttl, now)?, &waiters))
        })
        .await
    }

    /// What answers a question now, without asking it; `None` if it would be opened or refused.
    pub async fn look_up(&self, question: Question) -> Result<Option<ApprovalAnswer>, StoreError> {
        let waiters = Arc::clone(&self.waiters);
        self.with(move |store, now| {
            let found = store.look_up(&question, now)?;
            Ok(found.map(|asked| answer(asked, &waiters)))
        })
        .await
    }

    /// Waits until a question is decided or over. Of the callers that wait for an approval for one
    /// execution, the one that has waited longest gets it. There is no time limit.
    ///
    /// Cancel safe: a caller that goes away before it has its outcome leaves the approval to the
    /// next one, or to the next equal question.
    pub async fn wait(&self, id: ApprovalId) -> Result<ApprovalOutcome, StoreError> {
        // Joined before the state is read, so that a decision in between is not missed.
        let waiting = self.waiters.join(id);
        let waiters = Arc::clone(&self.waiters);
        let known = self.with(move |store, now| {
            let Some(record) = store.get(id, now)? else {
                return Ok(Some(ApprovalOutcome::Expired));
            };
            let grant = match record.state {
                State::Approved => store.grant_of(id, now)?,
                _ => None,
            };
            Ok(outcome_of(record, grant, &waiters))
        });
        match known.await? {
            // A decision in between told this caller more than the state does.
            Some(outcome) => Ok(waiting.told().unwrap_or(outcome)),
            None => Ok(waiting.outcome().await),
        }
    }

    /// Whether a grant for one execution is kept for a caller that has waited for it.
    pub fn is_promised(&self, id: GrantId) -> bool {
        self.waiters.is_promised(id)
    }

    /// Gives back a grant for one execution that [`wait`](Self::wait) returned and that was not
    /// used: the next caller that waits gets it.
    pub fn release(&self, id: GrantId) {
        self.waiters.release(id);
    }

    /// Uses a grant of a lease, right before what it permits is sent. `false`: it is over, or it is
    /// for one execution and was used. After an error, or if the future is dropped, the grant may
    /// have been used.
    pub async fn use_grant(&self, id: GrantId, lease: LeaseId) -> Result<bool, StoreError> {
        let waiters = Arc::clone(&self.waiters);
        self.with(move |store, now| {
            let is_used = store.use_grant(id, lease, now)?;
            if is_used {
                waiters.used(id);
            }
            Ok(is_used)
        })
        .await
    }

    /// Returns a question.
    pub async fn get(&self, id: ApprovalId) -> Result<Option<Record>, StoreError> {
        let record = self.with(move |store, now| store.get(id, now)).await?;
        Ok(record.map(|record| self.with_waiting(record)))
    }

    /// Returns questions, the newest first.
    pub async fn list(&self, filter: Filter) -> Result<Vec<Record>, StoreError> {
        let records = self
            .with(move |store, now| store.list(&filter, now))
            .await?;
        let records = records.into_iter().map(|record| self.with_waiting(record));
        Ok(records.collect())
    }

    /// See [`ApprovalStore::pending`].
    pub async fn pending(&self, container: &Container) -> Result<Vec<ApprovalId>, StoreError> {
        let (id, lease) = (container.id.clone(), container.lease);
        self.with(move |store, now| store.pending(&id, lease, now))
            .await
    }

    /// See [`ApprovalStore::approve`].
    pub async fn approve(
        &self,
        id: ApprovalId,
        scope: Option<Scope>,
        decision: Decision,
    ) -> Result<Record, Refused> {
        self.with_operator(move |store, now| store.approve(id, scope, &decision, now))
            .await
    }

    /// Approves a question about the definition of a tool. `accept` accepts the definition for
    /// everyone. It is called only while the question is open, on the thread of the ledger, so that
    /// no other decision comes in between; it may block. If it fails, the question stays open. No
    /// grant is left, since its end could not take back the acceptance.
    pub async fn approve_definition(
        &self,
        id: ApprovalId,
        decision: Decision,
        accept: impl FnOnce(&Record) -> Result<(), String> + Send + 'static,
    ) -> Result<Record, Refused> {
        self.with_operator(move |store, now| {
            let question = store.get(id, now)?.ok_or(Refused::Unknown)?;
            if question.state == State::Pending {
                accept(&question).map_err(Refused::NotInForce)?;
            }
            let approved = store.approve(id, Some(Scope::Always), &decision, now)?;
            if let Some(grant) = store.grant_of(id, now)? {
                store.revoke(grant.id, now)?;
            }
            Ok(approved)
        })
        .await
    }

    /// See [`ApprovalStore::deny`].
    pub async fn deny(&self, id: ApprovalId, decision: Decision) -> Result<Record, Refused> {
        self.with_operator(move |store, now| store.deny(id, &decision, now))
            .await
    }

    /// See [`ApprovalStore::forget`].
    pub async fn forget(&self, id: ApprovalId) -> Result<Record, Refused> {
        self.with_operator(move |store, now| store.forget(id, now))
            .await
    }

    /// Returns the live grants, the newest first.
    pub async fn grants(&self) -> Result<Vec<Grant>, StoreError> {
        self.with(|store, now| store.grants(now)).await
    }

    /// See [`ApprovalStore::add_grant`].
    pub async fn add_grant(
        &self,
        target: Target,
        scope: Scope,
        by: String,
    ) -> Result<Grant, Refused> {
        self.with_operator(move |store, now| store.add_grant(target, scope, &by, now))
            .await
    }

    /// See [`ApprovalStore::revoke`].
    pub async fn revoke(&self, id: GrantId) -> Result<Grant, Refused> {
        self.with_operator(move |store, now| store.revoke(id, now))
            .await
    }

    /// See [`ApprovalStore::end_outdated`].
    pub async fn end_outdated(
        &self,
        is_current: impl Fn(&Record) -> bool + Send + 'static,
    ) -> Result<(), StoreError> {
        self.with(move |store, now| store.end_outdated(&is_current, now))
            .await
    }

    /// Expires the questions whose time is over, and ends those of leases that are not live.
    pub async fn end_leases(
        &self,
        is_live: impl Fn(LeaseId) -> bool + Send + 'static,
    ) -> Result<(), StoreError> {
        self.with(move |store, now| store.end_leases(&is_live, now))
            .await
    }

    /// Subscribes to all further changes.
    pub fn watch(&self) -> Watch {
        self.watchers.subscribe()
    }

    /// Every second until the shutdown, expires questions and ends those of leases that are not
    /// live; every minute, deletes old ones. `live` returns the live leases, or `None` while they
    /// are unknown. It must not block.
    pub async fn run(self: Arc<Self>, live: Arc<LiveLeases>, shutdown: CancellationToken) {
        let mut ticks = interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pruned: Option<Instant> = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            self.waiters.lapse();
            let live = Arc::clone(&live);
            // Errors are logged by the thread.
            let _ = self
                .with(move |store, now| match live() {
                    // Asked for within the operation, so that each lease with a question has begun.
                    Some(live) => store.end_leases(&|lease| live.contains(&lease), now),
                    None => store.expire(now),
                })
                .await;
            if pruned.is_none_or(|at| at.elapsed() >= PRUNE_INTERVAL) {
                pruned = Some(Instant::now());
                let _ = self.with(|store, now| store.prune(now)).await;
            }
        }
    }

    fn with_waiting(&self, mut record: Record) -> Record {
        record.waiting = self.waiters.count(record.id);
        record
    }

    /// Does an operation on the thread of the store, after those that were called before.
    async fn with<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn ApprovalStore, OffsetDateTime) -> Result<T, StoreError>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let (reply, done) = oneshot::channel();
        let operation: Operation = Box::new(move |store, now| {
            // Fails if the caller has gone.
            let _ = reply.send(operation(store, now));
        });
        let slot = Withdraw(Arc::new(Mutex::new(Some(operation))));
        let stopped = || StoreError("the thread of the ledger has stopped".into());
        let done = match self.operations.try_send(Arc::clone(&slot.0)) {
            Ok(()) => timeout(STORE_LIMIT, done).await,
            Err(TrySendError::Full(_)) => {
                return Err(StoreError("too many operations wait".into()));
            }
            Err(TrySendError::Disconnected(_)) => return Err(stopped()),
        };
        let done = match done {
            Ok(done) => done.unwrap_or_else(|_| Err(stopped())),
            Err(_elapsed) => Err(StoreError("an operation takes longer than 5 s".into())),
        };
        self.log(done.as_ref().err());
        done
    }

    /// Logs an error after a success, and a success after an error.
    fn log(&self, error: Option<&StoreError>) {
        let was_failing = self.failing.swap(error.is_some(), Ordering::Relaxed);
        let store = &self.name;
        match error {
            Some(error) if !was_failing => {
                tracing::error!(%store, %error, "the ledger of approvals is unavailable: what needs a person's approval is denied");
            }
            None if was_failing => {
                tracing::info!(%store, "the ledger of approvals is available again")
            }
            _ => {}
        }
    }

    /// Like [`with`](Self::with), for operations that are refused for other reasons, too.
    async fn with_operator<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn ApprovalStore, OffsetDateTime) -> Result<T, Refused>
        + Send
        + 'static,
    ) -> Result<T, Refused> {
        self.with(move |store, now| match operation(store, now) {
            Err(Refused::Store(error)) => Err(error),
            done => Ok(done),
        })
        .await?
    }
}

/// The thread of the store: does the operations, and tells those who wait and watch.
fn work(
    queue: &Receiver<Slot>,
    mut store: impl ApprovalStore,
    clock: &Clock,
    waiters: &Waiters,
    watchers: &Watchers,
) {
    for slot in queue {
        let Some(operation) = slot.lock().take() else {
            continue;
        };
        let operation = AssertUnwindSafe(|| operation(&mut store, clock()));
        if catch_unwind(operation).is_err() {
            tracing::error!(%store, "an operation on the ledger of approvals failed");
        }
        for change in store.take_changes() {
            waiters.tell(&change);
            watchers.send(change);
        }
    }
}

/// Whether a question about a definition is replaced by one about another definition of the tool.
fn is_replaced(old: &Topic, new: &Topic) -> bool {
    let is_same = (old.lease, old.kind, &old.server, &old.subject)
        == (new.lease, new.kind, &new.server, &new.subject);
    is_same && old.revision != new.revision
}

fn answer(asked: Asked, waiters: &Waiters) -> ApprovalAnswer {
    match asked {
        // Another caller has waited for it.
        Asked::Granted { grant, .. } if waiters.is_promised(grant) => ApprovalAnswer::Used,
        Asked::Granted { grant, approval } => ApprovalAnswer::Granted { grant, approval },
        Asked::Denied { approval, words } => ApprovalAnswer::Denied { approval, words },
        Asked::Open(id) => ApprovalAnswer::Open(id),
        Asked::Full(limit) => ApprovalAnswer::Full(limit),
    }
}

/// What a caller learns that begins to wait; `None` while the question is open, or if the caller is
/// told through its queue.
fn outcome_of(record: Record, grant: Option<Grant>, waiters: &Waiters) -> Option<ApprovalOutcome> {
    let words = record.decision.and_then(|decision| decision.comment);
    Some(match (record.state, grant) {
        (State::Pending, _) => return None,
        (State::Approved, Some(grant)) if grant.scope == Scope::Once => {
            // It is used or given back soon.
            if waiters.is_promised(grant.id) {
                return None;
            }
            waiters.tell(&Change {
                approval: Some(record.id),
                container: record.topic.container,
                lease: record.topic.lease,
                news: News::Approved {
                    grant: grant.id,
                    once: true,
                },
            });
            return None;
        }
        (State::Approved, Some(grant)) => ApprovalOutcome::Granted(grant.id),
        (State::Approved | State::Expired, _) => ApprovalOutcome::Expired,
        (State::Used, _) => ApprovalOutcome::Used,
        (State::Denied, _) => ApprovalOutcome::Denied(words),
        (State::Ended, _) => ApprovalOutcome::Ended,
    })
}
