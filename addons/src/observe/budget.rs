//! How many audit lines one lease may write, and what becomes of the others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use super::audit::{AuditSink, Destination};
use super::line::{AuditLine, Cost};
use super::written::{Apart, Written};

/// The longest that a folded line waits to be written.
const HELD_FOR: Duration = Duration::from_secs(60);

/// Different lines that are held; what comes on top is told apart by its outcome alone.
const MAX_HELD: usize = 512;

/// What holds for all budgets.
pub(super) struct Terms {
    pub(super) lines_per_minute: NonZeroU32,
    pub(super) sink: Arc<dyn AuditSink>,
    pub(super) folded: IntCounter,
}

/// The budget of one lease, or of all strangers together. What it still holds is written when
/// it is dropped: a lease owns its budget.
pub(super) struct Budget {
    limiter: DefaultDirectRateLimiter,
    held: Mutex<Held>,
    terms: Arc<Terms>,
    ended: CancellationToken,
}

#[derive(Default)]
struct Held {
    /// By what the lines say, whichever flow they say it of. All of it is hashed, so that a
    /// client cannot make many that share a hash.
    lines: HashMap<Vec<u8>, Fold, foldhash::fast::RandomState>,
    since: Option<Instant>,
}

/// What the first line said of its own flow, and the sums of all.
struct Fold {
    head: Vec<u8>,
    cost_at: usize,
    cost: Cost,
    count: u64,
}

impl Fold {
    fn add(&mut self, cost: Cost) {
        self.count += 1;
        self.cost.bytes_in = self.cost.bytes_in.saturating_add(cost.bytes_in);
        self.cost.bytes_out = self.cost.bytes_out.saturating_add(cost.bytes_out);
    }
}

impl Budget {
    pub(super) fn new(terms: Arc<Terms>, ended: CancellationToken) -> Self {
        Self {
            limiter: RateLimiter::direct(Quota::per_minute(terms.lines_per_minute)),
            held: Mutex::default(),
            terms,
            ended,
        }
    }

    /// Whether one more line may be written by itself. What may not is to be folded.
    pub(super) fn admits(&self) -> bool {
        self.limiter.check().is_ok()
    }

    /// Folds the line into those that say the same.
    pub(super) fn fold(&self, line: &AuditLine<'_>, written: Written) {
        // Before the lock, so that a text that is not kept is freed outside of it.
        let mut apart = written.apart();
        let mut held = self.held.lock();
        if let Some(fold) = held.lines.get_mut(&apart.said) {
            fold.add(line.cost);
            self.terms.folded.inc();
            return;
        }
        held.since.get_or_insert_with(Instant::now);
        if held.lines.len() >= MAX_HELD {
            apart = line.coarse().written().apart();
        }
        match held.lines.entry(apart.said) {
            Entry::Occupied(mut fold) => {
                fold.get_mut().add(line.cost);
                self.terms.folded.inc();
            }
            Entry::Vacant(new) => {
                apart.head.shrink_to_fit();
                new.insert(Fold {
                    head: apart.head,
                    cost_at: apart.cost_at,
                    cost: line.cost,
                    count: 1,
                });
            }
        }
    }

    /// Writes what has been held long enough, or all of it when the lease is over.
    pub(super) fn flush_if_due(&self, now: Instant) {
        let due = self.held.lock().since.is_some_and(|since| {
            now.saturating_duration_since(since) >= HELD_FOR || self.ended.is_cancelled()
        });
        if due {
            self.flush();
        }
    }

    /// Writes what is held.
    pub(super) fn flush(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        for (said, fold) in held.lines {
            let Fold { head, cost_at, .. } = fold;
            let line = Apart {
                head,
                said,
                cost_at,
            };
            let line = line.together(fold.cost, fold.count);
            let sink = &self.terms.sink;
            sink.write(&line, Instant::now(), Destination::Log);
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.flush();
    }
}
