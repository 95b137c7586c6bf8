//! Values that every flow writes to, one shard for each thread that serves flows.
//!
//! A cache line that two cores write to in turn moves between their caches each time, which takes
//! longer than the write. So counters and lists are sharded by thread, and a reader combines all
//! shards. See ADR 009.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use crossbeam_utils::CachePadded;

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of threads that can have their own shard: the CPUs available to the process, at the
/// first call.
#[must_use]
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| available_parallelism().map_or(1, NonZero::get))
}

/// Assigns the calling thread the shard of this number in every [`Shards`]. Threads with the same
/// number share a shard. Threads whose number is not below [`threads`], or that never call this,
/// all share one further shard.
pub fn claim(number: usize) {
    SHARD.set(Some(number));
}

/// A value for each of the first [`threads`] numbers of threads, and one for all other threads.
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
    /// Makes every shard with `make`.
    pub fn each(make: impl Fn() -> T) -> Self {
        let make = || CachePadded::new(make());
        Self {
            others: make(),
            threads: (0..threads()).map(|_| make()).collect(),
        }
    }

    /// The shard of the calling thread.
    pub fn mine(&self) -> &T {
        let own = SHARD.get().and_then(|at| self.threads.get(at));
        own.unwrap_or(&self.others)
    }

    /// All shards, in a fixed order.
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
    fn threads_that_claim_have_their_own_shard_and_others_share_one() {
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
