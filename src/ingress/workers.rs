//! The threads that serve connections, each connection on one of them. See ADR 008.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use addons::contract::Container;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::runtime::threads;

/// The threads, one for each core that the process may use.
pub struct Workers {
    first: Handle,
    others: Vec<Handle>,
    /// The thread at which the next search for the least loaded thread begins, so that threads with
    /// equal load take turns.
    next: AtomicUsize,
    unknown_sources: Arc<OpenCounts>,
    _ends: DropGuard,
}

/// Open connections of one container, or of all unknown sources, on each thread. The next
/// connection goes to the thread with the fewest of them. If connections of other containers
/// counted, another container could choose that thread.
#[derive(Default)]
pub struct OpenCounts(Mutex<Vec<usize>>);

/// The thread that serves a connection. The connection is counted on it until this is dropped.
pub struct Assignment {
    /// The runtime of the thread.
    pub runtime: Handle,
    thread: usize,
    counts: Arc<OpenCounts>,
}

impl Workers {
    /// Starts the threads. They end when this is dropped, and abort their tasks.
    pub fn start() -> io::Result<Self> {
        let ended = CancellationToken::new();
        let start = |number| start_thread(number, ended.clone());
        Ok(Self {
            first: start(0)?,
            others: (1..threads()).map(start).collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
            unknown_sources: Arc::default(),
            _ends: ended.drop_guard(),
        })
    }

    /// Assigns a connection of a container, or of an unknown source, to a thread.
    pub fn assign(&self, container: Option<&Container>) -> Assignment {
        let counts = match container {
            Some(container) => Arc::clone(container.state_or_init(Arc::<OpenCounts>::default)),
            None => Arc::clone(&self.unknown_sources),
        };
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let thread = counts.enter(1 + self.others.len(), turn);
        let runtime = thread.checked_sub(1).and_then(|at| self.others.get(at));
        Assignment {
            runtime: runtime.unwrap_or(&self.first).clone(),
            thread,
            counts,
        }
    }
}

impl OpenCounts {
    /// Counts a connection on the thread with the fewest connections, and returns the thread's
    /// index. Of several such threads, takes the first from `turn` on, modulo the number of
    /// threads.
    fn enter(&self, threads: usize, turn: usize) -> usize {
        let mut counts = self.0.lock();
        counts.resize(threads, 0);
        let after = |at: usize| (at + threads - turn % threads) % threads;
        let threads = counts.iter_mut().enumerate();
        match threads.min_by_key(|(at, count)| (**count, after(*at))) {
            Some((at, count)) => {
                *count += 1;
                at
            }
            None => 0,
        }
    }

    fn leave(&self, thread: usize) {
        if let Some(count) = self.0.lock().get_mut(thread) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Starts a thread, which runs until `ended` is cancelled. Returns its runtime.
fn start_thread(number: usize, ended: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name(format!("proxy-{number}"));
    thread.spawn(move || {
        runtime.block_on(ended.cancelled());
        // Unlike a drop of the runtime, this does not wait for a blocking call that hangs.
        runtime.shutdown_background();
    })?;
    Ok(handle)
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.counts.leave(self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_container_are_spread_evenly_however_long_each_lasts() {
        let counts = OpenCounts::default();
        for turn in 0..6 {
            counts.enter(3, turn);
        }
        assert_eq!(*counts.0.lock(), [2, 2, 2]);
        counts.leave(1);
        counts.leave(1);
        for turn in 0..2 {
            assert_eq!(counts.enter(3, turn), 1);
        }
    }

    #[test]
    fn containers_with_one_connection_each_are_spread_over_the_threads() {
        let hoarder = OpenCounts::default();
        for turn in 0..300 {
            hoarder.enter(3, turn);
        }
        for _ in 0..100 {
            hoarder.leave(2);
        }
        let threads = (0..6).map(|turn| OpenCounts::default().enter(3, turn));
        assert_eq!(threads.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }

    #[tokio::test]
    async fn a_dropped_assignment_is_no_longer_counted() {
        let workers = Workers::start().unwrap();
        let assignments: Vec<_> = (0..4).map(|_| workers.assign(None)).collect();
        let open = || workers.unknown_sources.0.lock().iter().sum::<usize>();
        assert_eq!(open(), 4);
        drop(assignments);
        assert_eq!(open(), 0);
    }

    #[tokio::test]
    async fn a_task_and_the_tasks_that_it_spawns_stay_on_one_thread() {
        let workers = Workers::start().unwrap();
        let assignment = workers.assign(None);
        let thread = || std::thread::current().id();
        let task = assignment.runtime.spawn(async move {
            let own = thread();
            let other = tokio::spawn(async move { thread() }).await.unwrap();
            (own, other)
        });
        let (own, other) = task.await.unwrap();
        assert_eq!(own, other);
        assert_ne!(own, thread());
    }
}
