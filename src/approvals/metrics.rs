//! Metrics of questions.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::{ApprovalId, QuestionKind};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::record::{Change, News, Record, State};
use super::store::{Filter, StoreError};
use super::watch::Seen;

/// The ways in which a question stops to be open, as `outcome`. An approval for one execution that
/// was used is an approval.
const OUTCOMES: [State; 4] = [State::Approved, State::Denied, State::Expired, State::Ended];
/// Upper bounds in seconds: from an answer at once to a question that nobody saw for an hour.
const BUCKETS: [f64; 10] = [
    1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Counts questions by their kind, and how long they waited.
#[derive(Clone)]
pub struct ApprovalMetrics {
    decided: IntCounterVec,
    pending: IntGaugeVec,
    waits: HistogramVec,
}

impl ApprovalMetrics {
    /// Registers the metrics. All series exist from the start.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let decided = Opts::new(
            "proxy_approvals_total",
            "Questions that are no longer open, by what became of them.",
        );
        let pending = Opts::new("proxy_approvals_pending", "Open questions.");
        let waits = HistogramOpts::new(
            "proxy_approval_wait_seconds",
            "How long questions were open.",
        );
        let metrics = Self {
            decided: IntCounterVec::new(decided, &["kind", "outcome"])?,
            pending: IntGaugeVec::new(pending, &["kind"])?,
            waits: HistogramVec::new(waits.buckets(BUCKETS.to_vec()), &["kind", "outcome"])?,
        };
        registry.register(Box::new(metrics.decided.clone()))?;
        registry.register(Box::new(metrics.pending.clone()))?;
        registry.register(Box::new(metrics.waits.clone()))?;
        for kind in QuestionKind::ALL {
            metrics.pending.with_label_values(&[kind.as_str()]);
            for outcome in OUTCOMES {
                let labels = [kind.as_str(), outcome.as_str()];
                metrics.decided.with_label_values(&labels);
                metrics.waits.with_label_values(&labels);
            }
        }
        Ok(metrics)
    }

    /// Follows the ledger until the shutdown.
    pub async fn follow(self, ledger: Arc<Ledger>, shutdown: CancellationToken) {
        // Subscribed first, so that no question is missed in between.
        let mut watch = ledger.watch();
        let mut open = Open::new();
        let mut is_current = self.compare(&ledger, &mut open).await.is_ok();
        while let Some(Some(seen)) = shutdown.run_until_cancelled(watch.next()).await {
            let done = match seen {
                Seen::Changed(change) if is_current => {
                    self.apply(&ledger, &mut open, &change).await
                }
                _ => self.compare(&ledger, &mut open).await,
            };
            is_current = done.is_ok();
        }
    }

    async fn apply(
        &self,
        ledger: &Ledger,
        open: &mut Open,
        change: &Change,
    ) -> Result<(), StoreError> {
        let Some(id) = change.approval else {
            return Ok(());
        };
        let outcome = match change.news {
            News::Opened => None,
            News::Approved { .. } => Some(State::Approved),
            News::Denied(_) => Some(State::Denied),
            News::Expired => Some(State::Expired),
            News::Ended => Some(State::Ended),
            _ => return Ok(()),
        };
        if let Some(record) = ledger.get(id).await? {
            match outcome {
                None => self.opened(open, &record),
                Some(outcome) => self.closed(open, &record, outcome),
            }
        }
        Ok(())
    }

    /// Compares the known open questions with the ledger, at the start and after missed changes.
    async fn compare(&self, ledger: &Ledger, open: &mut Open) -> Result<(), StoreError> {
        let known: Vec<_> = open.keys().copied().collect();
        for id in known {
            let Some(record) = ledger.get(id).await? else {
                continue;
            };
            match record.state {
                State::Pending => {}
                State::Used => self.closed(open, &record, State::Approved),
                state => self.closed(open, &record, state),
            }
        }
        let mut filter = Filter {
            state: Some(State::Pending),
            ..Filter::default()
        };
        loop {
            let page = ledger.list(filter.clone()).await?;
            page.iter().for_each(|record| self.opened(open, record));
            match page.last() {
                Some(last) => filter.before = Some(last.id),
                None => return Ok(()),
            }
        }
    }

    fn opened(&self, open: &mut Open, record: &Record) {
        let kind = record.topic.kind;
        if open.insert(record.id, kind).is_none() {
            self.pending.with_label_values(&[kind.as_str()]).inc();
        }
    }

    fn closed(&self, open: &mut Open, record: &Record, outcome: State) {
        let Some(kind) = open.remove(&record.id) else {
            return;
        };
        let labels = [kind.as_str(), outcome.as_str()];
        self.pending.with_label_values(&[kind.as_str()]).dec();
        self.decided.with_label_values(&labels).inc();
        let waited = record.closed_at.unwrap_or(record.created_at) - record.created_at;
        self.waits
            .with_label_values(&labels)
            .observe(waited.as_seconds_f64());
    }
}

/// The open questions that `proxy_approvals_pending` counts.
type Open = HashMap<ApprovalId, QuestionKind>;
