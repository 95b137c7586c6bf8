//! Counters of frequent label sets, found without a lock and without hashing labels.

use std::array;
use std::sync::{Arc, OnceLock};

use super::sharded::{Durations, ShardedCounter};

/// The series of one entry of the allowlist. They are handles: after a reload, the new entry with
/// the same label counts in the same series.
#[derive(Default)]
pub(super) struct EntryCounters {
    /// By status, outcome and method.
    pub(super) requests: HotCounters<(u16, &'static str, &'static str), 16>,
    pub(super) durations: OnceLock<Durations>,
    /// By the credential's name.
    pub(super) injected: HotCounters<Arc<str>, 4>,
}

/// The first `PLACES` label sets that were counted, each with its counter. Further label sets are
/// looked up each time.
pub(super) struct HotCounters<K, const PLACES: usize>([OnceLock<(K, ShardedCounter)>; PLACES]);

impl<K, const PLACES: usize> Default for HotCounters<K, PLACES> {
    fn default() -> Self {
        Self(array::from_fn(|_| OnceLock::new()))
    }
}

impl<K: Clone + PartialEq, const PLACES: usize> HotCounters<K, PLACES> {
    /// Increments the counter of a label set; `look_up` returns the counter of one that has no place.
    pub(super) fn count(&self, these: &K, look_up: impl Fn() -> ShardedCounter) {
        for place in &self.0 {
            let (counted, counter) = place.get_or_init(|| (these.clone(), look_up()));
            if counted == these {
                return counter.inc();
            }
        }
        look_up().inc();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use prometheus::Opts;

    use super::super::sharded::ShardedCounterVec;
    use super::*;

    #[test]
    fn concurrent_increments_are_all_counted_and_hot_series_looked_up_once() {
        const THREADS: u64 = 4;
        const TIMES: u64 = 100;
        let counters = ShardedCounterVec::new(Opts::new("n", "n"), &["n"]).unwrap();
        let of = |n: u16| counters.with_label_values(&[n.to_string()]);
        let usual = HotCounters::<u16, 3>::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for n in (0..TIMES).flat_map(|_| 0..6) {
                        usual.count(&n, || of(n));
                    }
                });
            }
        });
        for n in 0..6 {
            assert_eq!(of(n).get(), THREADS * TIMES, "{n}");
        }
        let known = usual.0.each_ref().map(|place| place.get().unwrap().0);
        for n in known {
            usual.count(&n, || panic!("{n} is known"));
        }
    }
}
