//! Metrics with a shard for each thread, since every flow increments them. A scrape sums the
//! shards, so that threads share no cache line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::core::{
    Atomic, AtomicF64, GenericCounter, GenericCounterVec, Metric, MetricVec, MetricVecBuilder,
};
use prometheus::proto::{self, LabelPair, MetricType};
use prometheus::{Opts, Result};

use crate::shards::Shards;

/// A counter with a shard for each thread.
pub(super) type ShardedCounter = GenericCounter<Count>;

/// The counters of one metric.
pub(super) type ShardedCounterVec = GenericCounterVec<Count>;

/// The value of a counter, by thread.
pub(super) struct Count(Shards<AtomicU64>);

impl Atomic for Count {
    type T = u64;

    fn new(value: u64) -> Self {
        let count = Self(Shards::default());
        count.inc_by(value);
        count
    }

    fn set(&self, value: u64) {
        for shard in self.0.all() {
            shard.store(0, Ordering::Relaxed);
        }
        self.inc_by(value);
    }

    fn get(&self) -> u64 {
        let shards = self.0.all().map(|shard| shard.load(Ordering::Relaxed));
        // Wrapping, since one thread may subtract what another added.
        shards.fold(0, u64::wrapping_add)
    }

    fn inc_by(&self, delta: u64) {
        self.0.mine().fetch_add(delta, Ordering::Relaxed);
    }

    fn dec_by(&self, delta: u64) {
        self.0.mine().fetch_sub(delta, Ordering::Relaxed);
    }
}

/// Upper bounds of the buckets in seconds: from a cached answer to a long completion.
const BOUNDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0,
];

/// The histograms of one metric.
pub(super) type DurationsVec = MetricVec<DurationsBuilder>;

/// A histogram with a shard for each thread.
#[derive(Clone)]
pub(super) struct Durations(Arc<Series>);

struct Series {
    labels: Vec<LabelPair>,
    shards: Shards<Observed>,
}

struct Observed {
    /// Durations up to each bound and above the previous one; the last counts those above all
    /// bounds.
    counts: [AtomicU64; BOUNDS.len() + 1],
    seconds: AtomicF64,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            counts: Default::default(),
            seconds: AtomicF64::new(0.0),
        }
    }
}

impl Durations {
    pub(super) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let mine = self.0.shards.mine();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = mine.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        mine.seconds.inc_by(seconds);
    }
}

impl Metric for Durations {
    fn metric(&self) -> proto::Metric {
        let shards = || self.0.shards.all();
        let count_at = |at: usize| -> u64 {
            let counts = shards().filter_map(|shard| shard.counts.get(at));
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let mut counted = 0;
        let below = BOUNDS.iter().enumerate().map(|(at, bound)| {
            counted += count_at(at);
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(counted);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(below.collect());
        // From the same reads as the buckets, so that a concurrent increment causes no difference.
        histogram.set_sample_count(counted + count_at(BOUNDS.len()));
        histogram.set_sample_sum(shards().map(|shard| shard.seconds.get()).sum());
        let mut metric = proto::Metric::from_label(self.0.labels.clone());
        metric.set_histogram(histogram);
        metric
    }
}

/// Builds the histogram of each label set.
#[derive(Clone)]
pub(super) struct DurationsBuilder;

impl DurationsBuilder {
    pub(super) fn vec(opts: Opts, labels: &[&str]) -> Result<DurationsVec> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        MetricVec::create(MetricType::HISTOGRAM, Self, opts.variable_labels(labels))
    }
}

impl MetricVecBuilder for DurationsBuilder {
    type M = Durations;
    type P = Opts;

    fn build<V: AsRef<str>>(&self, opts: &Opts, values: &[V]) -> Result<Durations> {
        let pair = |(name, value): (&String, &V)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.as_ref().to_owned());
            pair
        };
        Ok(Durations(Arc::new(Series {
            labels: opts.variable_labels.iter().zip(values).map(pair).collect(),
            shards: Shards::default(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use prometheus::{HistogramOpts, HistogramVec, Registry, TextEncoder};

    use super::*;
    use crate::shards::{claim, threads};

    /// Runs `act` on a thread for each shard, and on two more that share one. Returns the number of
    /// threads.
    fn from_all_threads(act: impl Fn() + Sync) -> usize {
        let act = &act;
        let numbers = (0..threads()).map(Some).chain([None, None]);
        thread::scope(|scope| {
            let started = numbers.map(|number| {
                scope.spawn(move || {
                    number.into_iter().for_each(claim);
                    act();
                })
            });
            started.collect::<Vec<_>>().len()
        })
    }

    #[test]
    fn a_concurrent_reader_sees_the_count_only_grow() {
        const TIMES: u64 = 10_000;
        let counters = ShardedCounterVec::new(Opts::new("n", "n"), &["n"]).unwrap();
        let counter = counters.with_label_values(&["a"]);
        let most = TIMES * (threads() as u64 + 2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < most {
                        let now = counter.get();
                        assert!((last..=most).contains(&now), "{now} after {last}");
                        last = now;
                    }
                });
            }
            from_all_threads(|| (0..TIMES).for_each(|_| counter.inc()));
        });
        assert_eq!(counters.with_label_values(&["a"]).get(), most);
        counter.reset();
        assert_eq!(counter.get(), 0);
    }

    #[test]
    fn durations_are_rendered_like_the_librarys_histogram() {
        let text = |collector: Box<dyn prometheus::core::Collector>| {
            let registry = Registry::new();
            registry.register(collector).unwrap();
            let families = registry.gather();
            TextEncoder::new().encode_to_string(&families).unwrap()
        };
        let opts = HistogramOpts::new("d", "How long").buckets(BOUNDS.to_vec());
        let expected = HistogramVec::new(opts, &["upstream"]).unwrap();
        let sharded = DurationsBuilder::vec(Opts::new("d", "How long"), &["upstream"]).unwrap();
        // Halves and quarters of seconds, whose sum does not depend on the order.
        let millis = [
            0, 250, 500, 750, 1000, 2500, 10_000, 60_250, 300_000, 301_000,
        ];
        let durations = millis.map(Duration::from_millis);
        let ours = sharded.with_label_values(&["*.example.com"]);
        let times = from_all_threads(|| durations.iter().for_each(|one| ours.observe(*one)));
        let theirs = expected.with_label_values(&["*.example.com"]);
        for one in durations.iter().cycle().take(times * durations.len()) {
            theirs.observe(one.as_secs_f64());
        }
        let (ours, theirs) = (text(Box::new(sharded)), text(Box::new(expected)));
        assert!(
            theirs.contains(&format!(r#"le="0.25"}} {}"#, 2 * times)),
            "{theirs}"
        );
        assert_eq!(ours, theirs);
    }
}
