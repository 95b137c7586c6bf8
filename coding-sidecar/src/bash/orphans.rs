//! The second line of defence: what a killed supervisor left becomes a child of the sidecar.
//!
//! A command may kill its supervisor, which belongs to the same user. The sidecar is a child
//! subreaper too, so what the supervisor had becomes its own, and it kills that.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::children;
use crate::report;

/// How long processes that a killed supervisor left are killed again and again.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(1);

/// The running supervisors, and the request to kill the processes that killed ones left.
pub struct Supervisors {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    running: HashSet<Pid>,
    /// When the oldest supervisor whose leftovers are to be killed began, in clock ticks.
    sweep_since: Option<u64>,
}

impl Supervisors {
    /// Makes this process the parent of what killed supervisors leave. Starts the task that kills
    /// and reaps it.
    ///
    /// # Errors
    ///
    /// `/proc` is missing, or signals cannot be watched.
    pub fn watch() -> io::Result<Arc<Self>> {
        set_child_subreaper(Some(getpid()))?;
        let supervisors = Arc::new(Self {
            state: Mutex::default(),
            wake: Notify::new(),
        });
        let reaper = Reaper {
            supervisors: supervisors.clone(),
            // An entry point that started daemons and then became the sidecar: they stay.
            inherited: children::list()?.into_iter().collect(),
        };
        tokio::spawn(reaper.run(signal(SignalKind::child())?));
        Ok(supervisors)
    }

    /// Must be called before anything is awaited after the start of the supervisor.
    pub fn add(&self, supervisor: Pid) {
        self.lock().running.insert(supervisor);
    }

    /// A supervisor that was reaped.
    pub fn remove(&self, supervisor: Pid) {
        self.lock().running.remove(&supervisor);
    }

    /// Kills what a supervisor left that began at `started` and did not end in order.
    pub fn sweep(&self, started: u64) {
        let mut state = self.lock();
        let since = state
            .sweep_since
            .map_or(started, |since| since.min(started));
        state.sweep_since = Some(since);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Reaper {
    supervisors: Arc<Supervisors>,
    inherited: HashSet<Pid>,
}

impl Reaper {
    async fn run(mut self, mut ended: Signal) {
        loop {
            tokio::select! {
                _ = ended.recv() => {
                    self.reap();
                }
                () = self.supervisors.wake.notified() => {
                    let since = self.supervisors.lock().sweep_since.take();
                    if let Some(since) = since {
                        self.kill_since(since).await;
                    }
                }
            }
        }
    }

    /// Reaps what ended, and returns what is alive and no supervisor.
    fn reap(&mut self) -> Vec<Pid> {
        let children = children::list().unwrap_or_default();
        let supervisors = self.supervisors.lock();
        let others = children.into_iter();
        let others = others.filter(|child| !supervisors.running.contains(child));
        others
            .filter(|child| {
                let ended = children::reap(*child).is_some();
                if ended {
                    self.inherited.remove(child);
                }
                !ended
            })
            .collect()
    }

    /// Kills the children that are neither supervisors nor inherited and began at `since` or later.
    /// Where the sidecar is process 1 of a container, processes of `docker exec` whose parents
    /// ended are its children too; those that are older stay.
    async fn kill_since(&mut self, since: u64) {
        let deadline = Instant::now() + KILL_PATIENCE;
        loop {
            let mut left = self.reap();
            left.retain(|child| {
                !self.inherited.contains(child)
                    && children::started(*child).is_some_and(|started| started >= since)
            });
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                report(&format!(
                    "WARNING: {} processes that a command left cannot be killed",
                    left.len()
                ));
                return;
            }
            left.into_iter().for_each(children::kill);
            sleep(ROUND_PAUSE).await;
        }
    }
}
