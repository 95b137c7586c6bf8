//! The threads that evaluate policies, and their queue.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::EvaluatorError;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Limit on the threads that [`PolicyThreads::start`] starts. More would take the cores from
/// connections.
const MAX_THREADS: usize = 4;
/// Limit on the evaluations that wait for a thread; further ones fail with
/// [`EvaluatorError::Busy`]. If there is one thread and each evaluation takes 50 µs, the last in a
/// full queue waits 13 ms.
const MAX_QUEUED: usize = 256;
/// Limit on the total size of the queued inputs, in bytes. An evaluation whose input would exceed
/// it fails with [`EvaluatorError::Busy`].
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Limit on the replacement threads. A thread is replaced if its evaluation does not end: the
/// engine checks the clock between steps, but cannot interrupt a call of a function. At the limit,
/// no further thread starts.
const MAX_STANDINS: usize = 4;
/// How long the caller waits after the time limit of an evaluation.
const GRACE: Duration = Duration::from_millis(100);
/// Stack of a thread, in bytes: enough for 32 nested expressions in a policy and 128 nested objects
/// in an input.
const STACK_BYTES: usize = 8 << 20;

// The states of a job. `GIVEN_UP`: the job still runs, and another thread replaces its thread.
const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;
const GIVEN_UP: u8 = 3;

/// Handle to the threads. Dropping it ends each thread after its current job.
pub struct PolicyThreads(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Number of replaced threads whose job has not ended yet.
    standins: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    bytes: usize,
    state: Arc<AtomicU8>,
}

impl PolicyThreads {
    /// Starts a thread for each core, at most `MAX_THREADS`.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with(cores.min(MAX_THREADS))
    }

    pub(super) fn with(threads: usize) -> io::Result<Self> {
        let this = Self(Arc::new(Shared {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            standins: AtomicUsize::new(0),
        }));
        for number in 0..threads {
            let shared = Arc::clone(&this.0);
            start(format!("policy-{number}"), move || shared.serve())?;
        }
        Ok(this)
    }

    /// Runs `work`, whose input has `bytes` bytes, on one of the threads. If the future is dropped
    /// before `work` has begun, `work` does not run. Fails with [`EvaluatorError::Busy`] if the
    /// queue is full, with [`EvaluatorError::TimedOut`] if waiting in the queue and `work` together
    /// take longer than `limit` plus `GRACE`, and with [`EvaluatorError::Failed`] if `work` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EvaluatorError> {
        let (sender, receiver) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(WAITING));
        let run = Box::new(move || {
            if !sender.is_closed() {
                // Fails if the caller has stopped waiting.
                let _ = sender.send(work());
            }
        });
        self.0.push(Job {
            run,
            bytes,
            state: Arc::clone(&state),
        })?;
        match timeout(limit.saturating_add(GRACE), receiver).await {
            Ok(Ok(value)) => Ok(value),
            // The closure was dropped without a result, since `work` panicked.
            Ok(Err(_)) => Err(panicked()),
            Err(_) => {
                self.0.give_up(&state);
                Err(EvaluatorError::TimedOut)
            }
        }
    }
}

/// The error for a caller whose evaluation panicked.
pub fn panicked() -> EvaluatorError {
    EvaluatorError::Failed("the policy engine panicked".to_owned())
}

impl Drop for PolicyThreads {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.arrived.notify_all();
    }
}

fn start(name: String, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    thread.stack_size(STACK_BYTES).spawn(serve).map(|_| ())
}

impl Shared {
    fn push(&self, job: Job) -> Result<(), EvaluatorError> {
        let mut queue = self.queue.lock();
        let bytes = queue.bytes.saturating_add(job.bytes);
        if queue.jobs.len() >= MAX_QUEUED || bytes > MAX_QUEUED_BYTES {
            return Err(EvaluatorError::Busy);
        }
        queue.bytes = bytes;
        queue.jobs.push_back(job);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    fn pop(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                queue.bytes = queue.bytes.saturating_sub(job.bytes);
                return Some(job);
            }
            self.arrived.wait(&mut queue);
        }
    }

    /// Runs jobs until the handle is dropped, or until another thread has replaced this thread.
    fn serve(&self) {
        while let Some(job) = self.pop() {
            job.state.store(RUNNING, Ordering::Release);
            if catch_unwind(AssertUnwindSafe(job.run)).is_err() {
                tracing::error!("the policy engine panicked");
            }
            if job.state.swap(ENDED, Ordering::AcqRel) == GIVEN_UP {
                self.standins.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
    }

    /// Starts a replacement thread if the job is still running and there are fewer than
    /// [`MAX_STANDINS`] replacement threads.
    fn give_up(self: &Arc<Self>, state: &Arc<AtomicU8>) {
        // A job that waits in the queue keeps no thread busy.
        if state.load(Ordering::Acquire) != RUNNING {
            return;
        }
        let standins = self
            .standins
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count < MAX_STANDINS).then(|| count.saturating_add(1))
            });
        if standins.is_err() {
            tracing::error!(
                "{MAX_STANDINS} evaluations of policies do not end: no further thread takes over"
            );
            return;
        }
        let (shared, state) = (Arc::clone(self), Arc::clone(state));
        // The new thread, not this one, marks the job as given up. The old thread therefore
        // continues to serve if the new thread cannot start, or if the job ends before the mark.
        let stand_in = move || {
            let stuck =
                state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
            match stuck {
                Ok(_) => shared.serve(),
                Err(_) => {
                    shared.standins.fetch_sub(1, Ordering::AcqRel);
                }
            }
        };
        tracing::warn!("an evaluation of a policy does not end; starting another thread");
        if let Err(error) = start("policy-standin".to_owned(), stand_in) {
            tracing::error!(%error, "cannot start a thread for policies");
            self.standins.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
#[path = "tests/threads.rs"]
mod tests;
