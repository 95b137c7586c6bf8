//! How many audit lines one lease may write, and what becomes of the others.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use super::audit::AuditSink;
use super::line::{Alike, AuditLine};

/// The longest that a folded line waits to be written.
const HELD_FOR: Duration = Duration::from_secs(60);

/// Different lines that are held; what comes on top is told apart by its outcome alone.
const MAX_HELD: usize = 512;

/// The budget of one lease, or of all strangers together. What it still holds is written when
/// it is dropped: a lease owns its budget.
pub(super) struct Budget {
    limiter: DefaultDirectRateLimiter,
    held: Mutex<Held>,
    sink: Arc<dyn AuditSink>,
    folded: IntCounter,
    ended: CancellationToken,
}

#[derive(Default)]
struct Held {
    lines: HashMap<Alike, Fold, foldhash::fast::RandomState>,
    since: Option<Instant>,
}

#[derive(Default)]
struct Fold {
    count: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Fold {
    fn add(&mut self, bytes_in: u64, bytes_out: u64) {
        self.count += 1;
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(bytes_out);
    }
}

impl Budget {
    pub(super) fn new(
        lines_per_minute: NonZeroU32,
        sink: Arc<dyn AuditSink>,
        folded: IntCounter,
        ended: CancellationToken,
    ) -> Self {
        Self {
            limiter: RateLimiter::direct(Quota::per_minute(lines_per_minute)),
            held: Mutex::default(),
            sink,
            folded,
            ended,
        }
    }

    /// Writes the line, or folds it into those like it.
    pub(super) fn write(&self, line: Arc<AuditLine>) {
        if self.limiter.check().is_ok() {
            self.sink.write(line);
        } else {
            self.fold(line);
        }
    }

    fn fold(&self, line: Arc<AuditLine>) {
        let (bytes_in, bytes_out) = (line.bytes_in, line.bytes_out);
        // Declared before the lock, so that a line that is not kept is freed outside of it.
        let mut key = Alike(line);
        let mut held = self.held.lock();
        if let Some(fold) = held.lines.get_mut(&key) {
            fold.add(bytes_in, bytes_out);
            self.folded.inc();
            return;
        }
        held.since.get_or_insert_with(Instant::now);
        if held.lines.len() >= MAX_HELD {
            key = Alike(Arc::new(Arc::unwrap_or_clone(key.0).coarse()));
        }
        let fold = held.lines.entry(key).or_default();
        if fold.count > 0 {
            self.folded.inc();
        }
        fold.add(bytes_in, bytes_out);
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
        for (Alike(line), fold) in held.lines {
            let mut line = Arc::unwrap_or_clone(line);
            line.bytes_in = fold.bytes_in;
            line.bytes_out = fold.bytes_out;
            line.count = (fold.count > 1).then_some(fold.count);
            self.sink.write(Arc::new(line));
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.flush();
    }
}
