//! What every flow writes to, once for each thread that serves flows.
//!
//! A word that two cores write to in turn moves between their caches each time, which takes
//! longer than what is done with it. What is only ever added up or gathered has a shard for each
//! thread in its place, and whoever reads takes them all.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use crossbeam_utils::CachePadded;

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// How many threads have shards of their own.
#[must_use]
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| available_parallelism().map_or(1, NonZero::get))
}

/// Gives the calling thread the shards of this number, from 0 to below [`threads`]; others may
/// have the same. All threads of higher numbers, and those that never call this, share one.
pub fn claim(number: usize) {
    SHARD.set(Some(number));
}

/// A value for each thread that serves flows, and one for all other threads.
#[derive(Debug)]
pub struct Shards<T> {
    others: CachePadded<T>,
    threads: Box<[CachePadded<T>]>,
}

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self::each(T::default)
    }
}

impl<T> Shards<T> {
    /// Makes each of them.
    pub fn each(make: impl Fn() -> T) -> Self {
        let make = || CachePadded::new(make());
        Self {
            others: make(),
            threads: (0..threads()).map(|_| make()).collect(),
        }
    }

    /// The calling thread's own.
    pub fn mine(&self) -> &T {
        let own = SHARD.get().and_then(|at| self.threads.get(at));
        own.unwrap_or(&self.others)
    }

    /// All of them, in a fixed order.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let others = std::iter::once(&self.others);
        others.chain(&self.threads).map(|shard| &**shard)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_claim_write_apart_and_others_together() {
        let shards = Shards::<AtomicUsize>::default();
        let add = |number: Option<usize>| {
            number.into_iter().for_each(claim);
            shards.mine().fetch_add(1, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            for number in 0..threads() {
                scope.spawn(move || add(Some(number)));
            }
            scope.spawn(|| add(None));
            scope.spawn(|| add(None));
        });
        let counts: Vec<_> = shards
            .all()
            .map(|one| one.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts.len(), 1 + threads());
        assert_eq!(counts.first(), Some(&2));
        assert!(counts.iter().skip(1).all(|count| *count == 1), "{counts:?}");
    }
}
