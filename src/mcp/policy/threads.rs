//! The threads that evaluate policies, and their queue.
//!
//! A container has at most one evaluation at a time. Containers take turns, so that those which ask
//! much wait for themselves. An evaluation cannot be interrupted, so one that runs for longer than
//! [`SLICE`] keeps its thread at a low priority, and another thread takes over the queue.

use std::collections::{HashMap, VecDeque};
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

/// Limit on the threads that [`PolicyThreads::start`] starts. More would take the cores from
/// connections.
const MAX_THREADS: usize = 4;
/// Limit on the evaluations of a container that wait or run; further ones fail with
/// [`EvaluatorError::Busy`].
const MAX_OF_CONTAINER: usize = 64;
/// Limit on the total size of the inputs of a container's evaluations, in bytes.
const MAX_BYTES_OF_CONTAINER: usize = 16 << 20;
/// Limit on the evaluations of all containers that wait or run.
const MAX_JOBS: usize = 1024;
/// Limit on the total size of their inputs, in bytes. Parsed, an input takes about ten times as much.
const MAX_BYTES: usize = 64 << 20;
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

#[derive(Default)]
struct Queue {
    /// The containers that have jobs, and none that runs, in the order of their turns.
    turns: VecDeque<ContainerId>,
    lanes: HashMap<ContainerId, Lane>,
    running: Vec<Running>,
    load: Load,
    /// Number of threads that run one slow evaluation and then end.
    slow: usize,
    closed: bool,
}

/// The jobs of one container.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Job>,
    /// Of the jobs that wait, and of the one that runs.
    load: Load,
}

#[derive(Clone, Copy, Default)]
struct Load {
    jobs: usize,
    bytes: usize,
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    bytes: usize,
}

struct Running {
    container: ContainerId,
    thread: Pid,
    since: Instant,
    /// Whether another thread has taken over the queue.
    is_slow: bool,
}

impl Load {
    fn with(self, bytes: usize) -> Self {
        Self {
            jobs: self.jobs.saturating_add(1),
            bytes: self.bytes.saturating_add(bytes),
        }
    }

    fn without(self, bytes: usize) -> Self {
        Self {
            jobs: self.jobs.saturating_sub(1),
            bytes: self.bytes.saturating_sub(bytes),
        }
    }

    fn is_within(self, jobs: usize, bytes: usize) -> bool {
        self.jobs <= jobs && self.bytes <= bytes
    }
}

impl PolicyThreads {
    /// Starts a thread for each core, at most `MAX_THREADS`, and the one that watches them.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with(cores.min(MAX_THREADS))
    }

    pub(super) fn with(threads: usize) -> io::Result<Self> {
        let this = Self(Arc::new(Shared {
            queue: Mutex::default(),
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
        self.0.push(container, Job { run, bytes })?;
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
    fn push(&mut self, container: &ContainerId, job: Job) -> Result<(), EvaluatorError> {
        let all = self.load.with(job.bytes);
        let lane = self.lanes.entry(container.clone()).or_default();
        let own = lane.load.with(job.bytes);
        let fits = own.is_within(MAX_OF_CONTAINER, MAX_BYTES_OF_CONTAINER);
        if !fits || !all.is_within(MAX_JOBS, MAX_BYTES) {
            if lane.load.jobs == 0 {
                self.lanes.remove(container);
            }
            return Err(EvaluatorError::Busy);
        }
        if lane.load.jobs == 0 {
            self.turns.push_back(container.clone());
        }
        lane.waiting.push_back(job);
        (lane.load, self.load) = (own, all);
        Ok(())
    }

    /// Takes the next job, of the container whose turn it is.
    fn begin(&mut self) -> Option<(ContainerId, Job)> {
        let container = self.turns.pop_front()?;
        let job = self.lanes.get_mut(&container)?.waiting.pop_front()?;
        self.running.push(Running {
            container: container.clone(),
            thread: gettid(),
            since: Instant::now(),
            is_slow: false,
        });
        Some((container, job))
    }

    /// Removes a job that has ended. Returns whether it was slow, so that its thread must end.
    fn end(&mut self, container: &ContainerId, bytes: usize) -> bool {
        self.load = self.load.without(bytes);
        if let Some(lane) = self.lanes.get_mut(container) {
            lane.load = lane.load.without(bytes);
            match lane.waiting.is_empty() {
                true => drop(self.lanes.remove(container)),
                false => self.turns.push_back(container.clone()),
            }
        }
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

    fn push(&self, container: &ContainerId, job: Job) -> Result<(), EvaluatorError> {
        self.queue.lock().push(container, job)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a job; `None` if the queue is closed.
    fn next(&self) -> Option<(ContainerId, Job)> {
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
        while let Some((container, Job { run, bytes })) = self.next() {
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
