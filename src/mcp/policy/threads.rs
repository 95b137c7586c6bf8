//! The threads that evaluate policies, and their queue.
//!
//! A container has at most one evaluation at a time. Containers take turns, so that those which ask
//! much wait for themselves. An evaluation cannot be interrupted, so one that runs for longer than
//! [`SLICE`] keeps its thread at a low priority, and another thread takes over the queue.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::{ContainerId, EvaluatorError};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::gettid;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::turns::Turns;

/// Limit on the threads that [`PolicyThreads::start`] starts. More would take the cores from
/// connections.
const MAX_THREADS: usize = 4;
/// How long an evaluation may run before another thread takes over the queue. A policy takes about
/// 0.2 ms for a small input.
const SLICE: Duration = Duration::from_millis(10);
/// Limit on the evaluations that run for longer than [`SLICE`] on threads of their own. At the
/// limit, others wait for the end of such an evaluation.
const MAX_SLOW: usize = 32;
/// Nice value of a thread whose evaluation runs for longer than [`SLICE`]. On a host whose cores are
/// busy it still gets a tenth of a core: with 15 it would get 3 %, and miss its time limit.
const SLOW_NICE: i32 = 10;
/// How long the caller waits after the time limit of an evaluation.
const GRACE: Duration = Duration::from_millis(100);
/// Stack of a thread, in bytes: enough for 32 nested expressions in a policy and 128 nested objects
/// in an input.
const STACK_BYTES: usize = 8 << 20;

/// Handle to the threads. Dropping it ends each thread after its current job.
pub struct PolicyThreads(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Signals that a job has begun while no other ran, or that the queue has closed.
    begun: Condvar,
}

struct Queue {
    turns: Turns<Job>,
    running: Vec<Running>,
    /// Number of threads that run one slow evaluation and then end.
    slow: usize,
    closed: bool,
}

/// Runs one evaluation.
type Job = Box<dyn FnOnce() + Send>;

struct Running {
    container: ContainerId,
    thread: Pid,
    since: Instant,
    /// Whether another thread has taken over the queue.
    is_slow: bool,
}

impl PolicyThreads {
    /// Starts a thread for each core, at most `MAX_THREADS`, and the one that watches them.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with(cores.min(MAX_THREADS))
    }

    pub(super) fn with(threads: usize) -> io::Result<Self> {
        let this = Self(Arc::new(Shared {
            queue: Mutex::new(Queue {
                turns: Turns::new(1),
                running: Vec::new(),
                slow: 0,
                closed: false,
            }),
            arrived: Condvar::new(),
            begun: Condvar::new(),
        }));
        for _ in 0..threads {
            this.0.start_serving()?;
        }
        let shared = Arc::clone(&this.0);
        start("policy-watch", move || shared.watch())?;
        Ok(this)
    }

    /// Runs `work` of a container, whose input has `bytes` bytes, on one of the threads. If the
    /// future is dropped before `work` has begun, `work` does not run. Fails with
    /// [`EvaluatorError::Busy`] if the queue is full, with [`EvaluatorError::TimedOut`] if waiting
    /// in the queue and `work` together take longer than `limit` plus `GRACE`, and with
    /// [`EvaluatorError::Failed`] if `work` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        container: &ContainerId,
        limit: Duration,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EvaluatorError> {
        let (sender, receiver) = oneshot::channel();
        let run = Box::new(move || {
            if !sender.is_closed() {
                // Fails if the caller has stopped waiting.
                let _ = sender.send(work());
            }
        });
        self.0.push(container, run, bytes)?;
        match timeout(limit.saturating_add(GRACE), receiver).await {
            Ok(Ok(value)) => Ok(value),
            // The closure was dropped without a result, since `work` panicked.
            Ok(Err(_)) => {
                let message = "the policy engine panicked".to_owned();
                Err(EvaluatorError::Failed(message))
            }
            Err(_) => Err(EvaluatorError::TimedOut),
        }
    }
}

impl Drop for PolicyThreads {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.arrived.notify_all();
        self.0.begun.notify_all();
    }
}

fn start(name: &str, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK_BYTES).spawn(serve).map(|_| ())
}

impl Queue {
    /// Takes the next job, of the container whose turn it is.
    fn begin(&mut self) -> Option<(ContainerId, Job, usize)> {
        let next = self.turns.begin(false)?;
        self.running.push(Running {
            container: next.0.clone(),
            thread: gettid(),
            since: Instant::now(),
            is_slow: false,
        });
        Some(next)
    }

    /// Removes a job that has ended. Returns whether it was slow, so that its thread must end.
    fn end(&mut self, container: &ContainerId, bytes: usize) -> bool {
        self.turns.end(container, bytes);
        let at = self
            .running
            .iter()
            .position(|one| one.container == *container);
        let is_slow = at.is_some_and(|at| self.running.swap_remove(at).is_slow);
        self.slow = self.slow.saturating_sub(usize::from(is_slow));
        is_slow
    }
}

impl Shared {
    fn start_serving(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        start("policy", move || shared.serve())
    }

    fn push(&self, container: &ContainerId, job: Job, bytes: usize) -> Result<(), EvaluatorError> {
        self.queue.lock().turns.push(container, job, bytes)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a job; `None` if the queue is closed.
    fn next(&self) -> Option<(ContainerId, Job, usize)> {
        let mut queue = self.queue.lock();
        while !queue.closed {
            if let Some(next) = queue.begin() {
                if queue.running.len() == 1 {
                    self.begun.notify_one();
                }
                return Some(next);
            }
            self.arrived.wait(&mut queue);
        }
        None
    }

    /// Runs jobs until the handle is dropped, or until another thread has taken over the queue.
    fn serve(&self) {
        while let Some((container, run, bytes)) = self.next() {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                tracing::error!("the policy engine panicked");
            }
            if self.queue.lock().end(&container, bytes) {
                // The next job of this container may have waited for the end of this one.
                self.arrived.notify_one();
                return;
            }
        }
    }

    /// Starts a thread for each evaluation that has run for longer than [`SLICE`].
    fn watch(self: &Arc<Self>) {
        let mut queue = self.queue.lock();
        while !queue.closed {
            if queue.running.is_empty() {
                self.begun.wait(&mut queue);
                continue;
            }
            self.begun.wait_for(&mut queue, SLICE);
            let Queue { running, slow, .. } = &mut *queue;
            let long = |one: &&mut Running| !one.is_slow && one.since.elapsed() >= SLICE;
            for one in running.iter_mut().filter(long) {
                if *slow >= MAX_SLOW {
                    break;
                }
                // Without another thread, this one goes on to serve the queue.
                if let Err(error) = self.start_serving() {
                    tracing::error!(%error, "cannot start a thread for policies");
                    break;
                }
                // Fails only if the kernel forbids it; the evaluation then keeps its priority.
                let _ = setpriority_process(Some(one.thread), SLOW_NICE);
                one.is_slow = true;
                *slow = slow.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/threads.rs"]
mod tests;
