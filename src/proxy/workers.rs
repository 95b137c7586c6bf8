//! The threads that connections are served on, each connection by one of them. See ADR 008.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The threads, as many as there are cores for us.
pub struct Workers {
    first: Worker,
    others: Vec<Worker>,
    /// Where the search for the emptiest begins, so that equals take turns.
    next: AtomicUsize,
    _ends: DropGuard,
}

#[derive(Clone)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// A place on a thread, for as long as a connection is open.
pub struct Place(Worker);

impl Workers {
    /// Starts the threads. They end when this is dropped, with all that still runs on them.
    pub fn start() -> io::Result<Self> {
        let ended = CancellationToken::new();
        let start = |number| Worker::start(number, ended.clone());
        let cores = std::thread::available_parallelism()?.get();
        Ok(Self {
            first: start(0)?,
            others: (1..cores).map(start).collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
            _ends: ended.drop_guard(),
        })
    }

    /// A place on the thread that has the fewest connections.
    pub fn place(&self) -> Place {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % (1 + self.others.len());
        let in_turn = self.all().skip(at).chain(self.all().take(at));
        let emptiest = in_turn.min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        let worker = emptiest.unwrap_or(&self.first).clone();
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Place(worker)
    }

    fn all(&self) -> impl Iterator<Item = &Worker> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Worker {
    fn start(number: usize, ended: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let worker = Self {
            runtime: runtime.handle().clone(),
            connections: Arc::default(),
        };
        let thread = std::thread::Builder::new().name(format!("proxy-{number}"));
        thread.spawn(move || {
            runtime.block_on(ended.cancelled());
            // Nobody waits for a look-up that hangs.
            runtime.shutdown_background();
        })?;
        Ok(worker)
    }
}

impl Place {
    /// What runs there.
    pub fn runtime(&self) -> Handle {
        self.0.runtime.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_evenly_however_long_each_lasts() {
        let workers = Workers::start().unwrap();
        let count = workers.all().count();
        let open = || {
            let open = workers
                .all()
                .map(|worker| worker.connections.load(Ordering::Relaxed));
            open.collect::<Vec<_>>()
        };
        let mut places: Vec<_> = (0..3 * count).map(|_| workers.place()).collect();
        assert_eq!(open(), vec![3; count]);
        // All of one thread's connections end: the next ones go there.
        let first = &workers.first.connections;
        places.retain(|place| !Arc::ptr_eq(&place.0.connections, first));
        let more: Vec<_> = (0..3).map(|_| workers.place()).collect();
        assert_eq!(open(), vec![3; count]);
        drop((places, more));
        assert_eq!(open(), vec![0; count]);
    }

    #[tokio::test]
    async fn a_task_and_what_it_spawns_stay_on_one_thread() {
        let workers = Workers::start().unwrap();
        let place = workers.place();
        let thread = || std::thread::current().id();
        let task = place.runtime().spawn(async move {
            let own = thread();
            let other = tokio::spawn(async move { thread() }).await.unwrap();
            (own, other)
        });
        let (own, other) = task.await.unwrap();
        assert_eq!(own, other);
        assert_ne!(own, thread());
    }
}
