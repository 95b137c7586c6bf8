//! Callers that wait for the decision of a question.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use addons::contract::{ApprovalId, ApprovalOutcome, GrantId};
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::oneshot;

use super::bounds::PROMISED_FOR;
use super::record::{Change, News};

/// Tells the time. Tests have their own.
pub type Clock = Arc<dyn Fn() -> OffsetDateTime + Send + Sync>;

/// The callers that wait, by question. A lock is held only while a caller joins, leaves or is told.
pub(super) struct Waiters {
    queues: Mutex<Queues>,
    clock: Clock,
}

#[derive(Default)]
struct Queues {
    /// In the order in which the callers began to wait. No queue is empty.
    waiting: HashMap<ApprovalId, VecDeque<Waiter>>,
    /// The grants for one execution that a caller has waited for and not used yet, with their
    /// questions, and the time until which other callers do not get them.
    promised: HashMap<GrantId, (ApprovalId, OffsetDateTime)>,
    /// The number of the next caller.
    next: u64,
}

struct Waiter {
    number: u64,
    told: oneshot::Sender<ApprovalOutcome>,
}

impl Waiters {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::default(),
            clock,
        })
    }

    /// Adds a caller at the end of a question's queue.
    pub(super) fn join(self: &Arc<Self>, id: ApprovalId) -> Waiting {
        let (told, outcome) = oneshot::channel();
        let mut queues = self.queues.lock();
        let number = queues.next;
        queues.next = number.wrapping_add(1);
        let queue = queues.waiting.entry(id).or_default();
        queue.push_back(Waiter { number, told });
        Waiting {
            waiters: Arc::clone(self),
            id,
            number,
            outcome,
        }
    }

    /// The number of callers that wait for a question.
    pub(super) fn count(&self, id: ApprovalId) -> usize {
        self.queues.lock().waiting.get(&id).map_or(0, VecDeque::len)
    }

    /// Whether a caller that has waited for this grant may still use it, so that no other gets it.
    pub(super) fn is_promised(&self, grant: GrantId) -> bool {
        self.lapse();
        self.queues.lock().promised.contains_key(&grant)
    }

    /// Gives grants that were not used in time to the next callers.
    pub(super) fn lapse(&self) {
        let now = (self.clock)();
        let mut queues = self.queues.lock();
        let over = queues
            .promised
            .iter()
            .filter(|(_, (_, until))| *until <= now);
        let over: Vec<_> = over.map(|(grant, (id, _))| (*grant, *id)).collect();
        for (grant, id) in over {
            queues.offer(id, grant, now);
        }
    }

    /// A used grant is not given back.
    pub(super) fn used(&self, grant: GrantId) {
        self.queues.lock().promised.remove(&grant);
    }

    /// Gives a grant that a caller has taken and not used to the next caller.
    pub(super) fn release(&self, grant: GrantId) {
        let mut queues = self.queues.lock();
        if let Some((id, _)) = queues.promised.remove(&grant) {
            queues.offer(id, grant, (self.clock)());
        }
    }

    /// Tells the callers of a question what became of it.
    pub(super) fn tell(&self, change: &Change) {
        let Some(id) = change.approval else {
            return;
        };
        let mut queues = self.queues.lock();
        match &change.news {
            News::Approved { grant, once: true } => queues.offer(id, *grant, (self.clock)()),
            News::Approved { grant, once: false } => {
                queues.tell_all(id, &ApprovalOutcome::Granted(*grant));
            }
            News::Denied(words) => queues.tell_all(id, &ApprovalOutcome::Denied(words.clone())),
            News::Expired => queues.tell_all(id, &ApprovalOutcome::Expired),
            News::Ended => queues.tell_all(id, &ApprovalOutcome::Ended),
            News::Used(grant) => {
                queues.promised.remove(grant);
                queues.tell_all(id, &ApprovalOutcome::Used);
            }
            News::Opened | News::Forgotten | News::Granted(_) | News::GrantEnded(_) => {}
        }
    }
}

impl Queues {
    fn tell_all(&mut self, id: ApprovalId, outcome: &ApprovalOutcome) {
        for waiter in self.waiting.remove(&id).into_iter().flatten() {
            // Fails if the caller has gone.
            let _ = waiter.told.send(outcome.clone());
        }
    }

    /// Gives a grant for one execution to the caller that has waited longest. The others wait until
    /// that caller has used it, since they are next if it does not.
    fn offer(&mut self, id: ApprovalId, grant: GrantId, now: OffsetDateTime) {
        self.promised.remove(&grant);
        let Some(queue) = self.waiting.get_mut(&id) else {
            return;
        };
        while let Some(first) = queue.pop_front() {
            if first.told.send(ApprovalOutcome::Granted(grant)).is_ok() {
                self.promised.insert(grant, (id, now + PROMISED_FOR));
                break;
            }
        }
        if queue.is_empty() {
            self.waiting.remove(&id);
        }
    }
}

/// A caller in the queue of a question. It leaves when this is dropped.
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    id: ApprovalId,
    number: u64,
    outcome: oneshot::Receiver<ApprovalOutcome>,
}

impl Waiting {
    /// Waits until the question is decided or over.
    pub(super) async fn outcome(mut self) -> ApprovalOutcome {
        let outcome = (&mut self.outcome).await;
        outcome.unwrap_or(ApprovalOutcome::Expired)
    }

    /// What this caller was told already.
    pub(super) fn told(mut self) -> Option<ApprovalOutcome> {
        self.outcome.try_recv().ok()
    }
}

impl Drop for Waiting {
    /// Leaves the queue, and passes a grant on that this caller was given and has not taken.
    fn drop(&mut self) {
        let now = (self.waiters.clock)();
        let mut queues = self.waiters.queues.lock();
        self.outcome.close();
        if let Ok(outcome) = self.outcome.try_recv() {
            if let ApprovalOutcome::Granted(grant) = outcome
                && queues.promised.contains_key(&grant)
            {
                queues.offer(self.id, grant, now);
            }
            return;
        }
        let Some(queue) = queues.waiting.get_mut(&self.id) else {
            return;
        };
        queue.retain(|waiter| waiter.number != self.number);
        if queue.is_empty() {
            queues.waiting.remove(&self.id);
        }
    }
}
