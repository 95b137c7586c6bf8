//! Budgets of lines in the audit log, and the folding of lines beyond a budget. Each lease has a
//! budget, all unknown sources share one, and the proxy's own flows share one.
//!
//! Three quarters of the bytes are for lines that are written as their flows end. A line beyond
//! this share, or beyond the limit on lines, is held for up to a minute. Held lines are folded:
//! lines that differ only in `ts`, `flow` and cost become one line with a count. One quarter of the
//! bytes is for lines that are held in full. Once this quarter is spent or `MAX_HELD` lines are
//! held in full, a further line is held in its coarse form, which has hardly more than the flow's
//! kind, outcome and code.
//!
//! In any minute, at most the bytes of the budget are written. Coarse lines come on top: at most
//! 128 KiB each time that the held lines are written.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use super::encoded_line::{EncodedLine, FoldableLine};
use super::line::{AuditLine, Cost};
use super::sink::{AuditSink, CHAIN_BYTES, Destination};
use super::window::{Amount, Window};

/// How long the first held line waits until all held lines are written.
const HELD_FOR: Duration = Duration::from_secs(60);

/// Limit on the lines that are held in full. It bounds the work of writing them at once.
const MAX_HELD: u32 = 512;

/// The share of the bytes that is reserved for lines held in full, as a divisor: a quarter.
const FOLDED_SHARE: u32 = 4;

pub(super) struct BudgetLimits {
    pub(super) lines_per_minute: NonZeroU32,
    pub(super) bytes_per_minute: NonZeroU32,
    pub(super) sink: Arc<dyn AuditSink>,
    pub(super) folded: IntCounter,
}

impl BudgetLimits {
    /// Limit on the bytes of lines that are held in full.
    fn folded_bytes(&self) -> u32 {
        self.bytes_per_minute.get() / FOLDED_SHARE
    }
}

/// The budget of one lease, of all unknown sources together, or of the proxy's own flows. Dropping
/// it writes the held lines.
pub(super) struct Budget {
    state: Mutex<State>,
    limits: Arc<BudgetLimits>,
    ended: CancellationToken,
}

struct State {
    /// The lines written in the last minute, except coarse ones. Their bytes and those of
    /// `held.full` together never exceed the budget.
    written: Window,
    held: Held,
    /// Whether the lease has ended and the lines held at its end have been written.
    flushed_at_end: bool,
}

#[derive(Default)]
struct Held {
    /// By `FoldableLine::key`. The whole key is hashed with a random seed, so that a client cannot
    /// choose keys that collide.
    lines: HashMap<Vec<u8>, Fold, foldhash::fast::RandomState>,
    /// The sum of the lines that are held in full, each at its longest.
    full: Amount,
    /// When the first of the lines was held.
    since: Option<Instant>,
}

/// A held line: `ts`, `flow` and duration of its first flow, and the sum of the bytes of all its
/// flows.
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
    pub(super) fn new(limits: Arc<BudgetLimits>, ended: CancellationToken) -> Self {
        let state = State {
            written: Window::new(Instant::now()),
            held: Held::default(),
            flushed_at_end: false,
        };
        Self {
            state: Mutex::new(state),
            limits,
            ended,
        }
    }

    /// Counts a line and returns `true` if the line fits into the budget. A line that does not fit
    /// must be folded.
    pub(super) fn admits(&self, line: &[u8], now: Instant) -> bool {
        let bytes = in_the_log(line.len());
        let mut state = self.state.lock();
        let spent = state.written.sum(now);
        let most = self.limits.bytes_per_minute.get() - self.limits.folded_bytes();
        let fits = spent.lines < self.limits.lines_per_minute.get()
            && spent.bytes.saturating_add(bytes) <= most;
        if fits {
            state.written.add(Amount { lines: 1, bytes }, now);
        }
        fits
    }

    /// Folds the line into an equal held line, or holds the line until the next flush. If the
    /// budget has no space for another line in full, folds or holds the line's coarse form instead.
    pub(super) fn fold(&self, line: &AuditLine<'_>, written: EncodedLine, now: Instant) {
        // Declared before the lock's guard, so that the line is freed after the lock is released.
        let mut foldable = written.foldable();
        let mut state = self.state.lock();
        if let Some(fold) = state.held.lines.get_mut(&foldable.key) {
            fold.add(line.cost);
            self.limits.folded.inc();
            return;
        }
        state.held.since.get_or_insert(now);
        if !self.holds_in_full(&mut state, &foldable, now) {
            foldable = line.coarse().encode().foldable();
        }
        match state.held.lines.entry(foldable.key) {
            Entry::Occupied(mut fold) => {
                fold.get_mut().add(line.cost);
                self.limits.folded.inc();
            }
            Entry::Vacant(new) => {
                foldable.head.shrink_to_fit();
                new.insert(Fold {
                    head: foldable.head,
                    cost_at: foldable.cost_at,
                    cost: line.cost,
                    count: 1,
                });
            }
        }
    }

    /// Reserves space for a line that is held in full. Returns `false` if too many lines or bytes
    /// are held, or if the line would exceed the budget of the minute.
    fn holds_in_full(&self, state: &mut State, line: &FoldableLine, now: Instant) -> bool {
        let bytes = in_the_log(line.max_length());
        let held = state.held.full.bytes.saturating_add(bytes);
        let all = state.written.sum(now).bytes.saturating_add(held);
        let fits = state.held.full.lines < MAX_HELD
            && held <= self.limits.folded_bytes()
            && all <= self.limits.bytes_per_minute.get();
        if fits {
            state.held.full.lines += 1;
            state.held.full.bytes = held;
        }
        fits
    }

    /// Writes the held lines if the first of them has waited for `HELD_FOR`, or if the lease has
    /// just ended. Lines that are held after the lease's end are written after `HELD_FOR` again, or
    /// when the budget is dropped.
    pub(super) fn flush_if_due(&self, now: Instant) {
        let is_due = {
            let mut state = self.state.lock();
            let is_last = self.ended.is_cancelled() && !state.flushed_at_end;
            state.flushed_at_end |= is_last;
            let since = state.held.since;
            is_last || since.is_some_and(|at| now.saturating_duration_since(at) >= HELD_FOR)
        };
        if is_due {
            self.flush(now);
        }
    }

    /// Writes the held lines.
    pub(super) fn flush(&self, now: Instant) {
        let held = {
            let mut state = self.state.lock();
            let held = std::mem::take(&mut state.held);
            state.written.add(held.full, now);
            held
        };
        for (key, fold) in held.lines {
            let Fold { head, cost_at, .. } = fold;
            let line = FoldableLine { head, key, cost_at };
            let line = line.encode(fold.cost, fold.count);
            self.limits.sink.write(&line, Destination::Log);
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.flush(Instant::now());
    }
}

/// The number of bytes that a line of this length takes in the log.
fn in_the_log(length: usize) -> u32 {
    u32::try_from(length + CHAIN_BYTES).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use serde_json::Value;

    use super::*;
    use crate::contract::{Addon, Code, Container, Denial, Kind, Outcome};
    use crate::fixtures::{container, flow_of};
    use crate::observe::{Audit, AuditSettings};

    const BUDGET: u32 = 256 * 1024;
    const COARSE: usize = 128 * 1024;
    const SECOND: Duration = Duration::from_secs(1);

    /// Lines of the log, with the time at which they were written.
    struct Log {
        /// The time of the test.
        now: Mutex<Instant>,
        lines: Mutex<Vec<(Instant, Value, usize)>>,
    }

    impl AuditSink for Log {
        fn write(&self, line: &[u8], to: Destination) {
            if to != Destination::Live {
                let value = serde_json::from_slice(line).unwrap();
                let line = (*self.now.lock(), value, line.len() + CHAIN_BYTES);
                self.lines.lock().push(line);
            }
        }
    }

    impl Log {
        fn starting(now: Instant) -> Arc<Self> {
            Arc::new(Self {
                now: Mutex::new(now),
                lines: Mutex::default(),
            })
        }

        /// The largest number of bytes in any 60 seconds, either of the coarse lines or of the
        /// others.
        fn most_in_a_minute(&self, coarse: bool) -> usize {
            let lines = self.lines.lock();
            let lines = lines
                .iter()
                .filter(|(_, line, _)| (line["host"] == "*") == coarse);
            let lines: Vec<_> = lines.map(|(at, _, bytes)| (*at, *bytes)).collect();
            let (mut first, mut sum, mut most) = (0, 0, 0);
            for (at, bytes) in &lines {
                sum += bytes;
                while *at >= lines[first].0 + 60 * SECOND {
                    sum -= lines[first].1;
                    first += 1;
                }
                most = most.max(sum);
            }
            most
        }

        fn flows(&self) -> u64 {
            let lines = self.lines.lock();
            let counts = lines.iter().map(|(_, line, _)| line["count"].as_u64());
            counts.map(|count| count.unwrap_or(1)).sum()
        }
    }

    fn audit(log: &Arc<Log>) -> Audit {
        let settings = AuditSettings {
            lines_per_minute_per_container: NonZeroU32::MAX,
            bytes_per_minute_per_container: NonZeroU32::new(BUDGET).unwrap(),
        };
        Audit::new(settings, Arc::clone(log) as _, &Registry::new()).unwrap()
    }

    /// Ends a flow whose line has more than 2 KiB, since each quote in its path takes two bytes.
    fn end(audit: &Audit, container: &Arc<Container>, number: usize, at: Instant) {
        let mut flow = flow_of(container, Kind::Http, "api.example.com");
        flow.start_mut().started = at;
        flow.record_mut().path = Some(format!("/{number}{}", "\"".repeat(1024)).into());
        let code = Code::ALL[number % Code::ALL.len()];
        let outcome = Outcome {
            status: 200,
            denial: (!number.is_multiple_of(3)).then(|| Denial::new(code, "no")),
            aborted: number.is_multiple_of(2),
            duration: Duration::ZERO,
        };
        audit.finished(&flow, &outcome);
    }

    #[test]
    fn no_pattern_of_flows_exceeds_the_bytes_of_a_minute() {
        type Flows = fn(u64) -> usize;
        const END: u64 = 104;
        let patterns: [(&str, Flows); 6] = [
            ("steadily", |_| 20),
            ("at once", |second| 3000 * usize::from(second == 0)),
            ("every minute", |second| {
                600 * usize::from(second % 60 == 59)
            }),
            ("in turns", |second| 40 * usize::from(second / 37 % 2 == 0)),
            ("when its lines are written", |second| {
                300 * usize::from(second % 61 < 2)
            }),
            // Folded lines are written after a minute, and again when the lease ends.
            ("when its lease ends", |second| match second {
                ..100 => 2,
                100..=END => 40,
                _ => 0,
            }),
        ];
        let mut wrong = Vec::new();
        for (how, flows_of) in patterns {
            let start = Instant::now();
            let log = Log::starting(start);
            let (audit, web) = (audit(&log), container("web"));
            let mut flows = 0;
            for second in 0..250 {
                let now = start + u32::try_from(second).unwrap() * SECOND;
                *log.now.lock() = now;
                for _ in 0..flows_of(second) {
                    end(&audit, &web, flows, now);
                    flows += 1;
                }
                if second == END {
                    web.end();
                }
                audit.tick(now);
            }
            audit.flush();
            let [full, coarse] = [false, true].map(|coarse| log.most_in_a_minute(coarse));
            let within = full <= BUDGET as usize && coarse <= COARSE;
            // At least half of the budget is used, and every flow is counted in some line.
            if !within || full < BUDGET as usize / 2 || log.flows() != flows as u64 {
                wrong.push((how, full, coarse, log.flows(), flows));
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn all_coarse_lines_of_a_container_together_have_at_most_128_kib() {
        let id = "x".repeat(128);
        let host = crate::contract::Host::parse("api.example.com").unwrap();
        let text = "y".repeat(4000);
        let mut codes: Vec<_> = Code::ALL.iter().map(|code| Some(code.as_str())).collect();
        // The outcomes `ok` and `aborted` have no code.
        codes.extend([None, None]);
        let of_kind = |kind| -> u32 {
            let of_code = codes.iter().map(|code| {
                let mut flow = flow_of(&container(&id), kind, "api.example.com");
                flow.record_mut().path = Some(text.as_str().into());
                let outcome = Outcome {
                    status: 200,
                    denial: None,
                    aborted: true,
                    duration: Duration::ZERO,
                };
                let line = AuditLine {
                    code: *code,
                    host: Some(&host),
                    rule: Some(&text),
                    credential: Some(&text),
                    ..AuditLine::of(&flow, &outcome)
                };
                in_the_log(line.coarse().encode().foldable().max_length())
            });
            of_code.sum()
        };
        let bytes = Kind::ALL.into_iter().map(of_kind).sum::<u32>() as usize;
        assert!(bytes <= COARSE, "{bytes}");
    }

    #[test]
    fn a_flood_of_one_container_does_not_fold_the_lines_of_another() {
        let start = Instant::now();
        let log = Log::starting(start);
        let audit = audit(&log);
        let (web, db) = (container("web"), container("db"));
        for number in 0..2000 {
            end(&audit, &web, number, start);
        }
        for number in 0..20 {
            end(&audit, &db, number, start);
        }
        let lines = log.lines.lock();
        let of_db = lines
            .iter()
            .filter(|(_, line, _)| line["container_id"] == "db");
        assert_eq!(of_db.count(), 20);
    }
}
