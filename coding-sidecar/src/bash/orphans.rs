//! Kills the processes of commands that still run when their supervisor has ended.
//!
//! A command may kill its supervisor, since both run as the same user. A supervisor also ends if it
//! could not kill every process in time. The sidecar is a child subreaper, so the remaining
//! processes become its children, and it kills them.

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

/// The most time for killing the processes that a supervisor left. After that, the sidecar logs a
/// warning and leaves them running.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two rounds of killing.
const ROUND_PAUSE: Duration = Duration::from_millis(1);

/// The running supervisors, and the request to kill leftover processes of ended supervisors.
pub struct Supervisors {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    running: HashSet<Pid>,
    /// The start time of the oldest supervisor whose leftover processes must be killed, in clock
    /// ticks since boot; `None` if there are none.
    sweep_since: Option<u64>,
}

impl Supervisors {
    /// Makes this process the parent of processes that outlive their supervisor. Starts the task
    /// that kills and reaps these processes.
    ///
    /// # Errors
    ///
    /// This process cannot become a child subreaper, `/proc` cannot be read, or SIGCHLD cannot be
    /// watched.
    pub fn watch() -> io::Result<Arc<Self>> {
        set_child_subreaper(Some(getpid()))?;
        let supervisors = Arc::new(Self {
            state: Mutex::default(),
            wake: Notify::new(),
        });
        let reaper = Reaper {
            supervisors: supervisors.clone(),
            // Daemons that the container's entry point started before it executed the sidecar;
            // they are not killed.
            inherited: children::list()?.into_iter().collect(),
        };
        tokio::spawn(reaper.run(signal(SignalKind::child())?));
        Ok(supervisors)
    }

    /// Adds a supervisor, so that it is neither killed nor reaped here. Must be called before the
    /// first `await` after the supervisor was started, since the task that reaps may run there.
    pub fn add(&self, supervisor: Pid) {
        self.lock().running.insert(supervisor);
    }

    /// Removes a supervisor that was reaped.
    pub fn remove(&self, supervisor: Pid) {
        self.lock().running.remove(&supervisor);
    }

    /// Requests the killing of the processes that a supervisor left. `started` is the supervisor's
    /// start time, in clock ticks since boot.
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
                    // If this fails, the next round reaps.
                    let _ = self.reap();
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

    /// Reaps the children that have ended, except supervisors.
    fn reap(&mut self) -> io::Result<()> {
        for child in self.not_supervisors(children::list()?) {
            if children::reap(child).is_some() {
                self.inherited.remove(&child);
            }
        }
        Ok(())
    }

    /// Kills and reaps the children that started at `since` or later and are neither supervisors
    /// nor inherited. If the sidecar is process 1 of a container, orphaned processes of
    /// `docker exec` are its children too. `since` spares those that started earlier.
    async fn kill_since(&mut self, since: u64) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let left = self.left_since(since);
            let problem = match &left {
                Ok(left) if left.is_empty() => return,
                Ok(left) => format!("{} processes left by commands cannot be killed", left.len()),
                Err(error) => format!("processes left by commands cannot be listed: {error}"),
            };
            if Instant::now() >= deadline {
                return report(&format!("WARNING: {problem}"));
            }
            for child in left.into_iter().flatten() {
                if children::reap(child).is_none() {
                    children::kill(child);
                }
            }
            sleep(ROUND_PAUSE).await;
        }
    }

    /// The children that started at `since` or later and are neither supervisors nor inherited.
    /// Those that have ended count until they are reaped: their own children may have become
    /// children of this process after the listing.
    fn left_since(&self, since: u64) -> io::Result<Vec<Pid>> {
        let left = |listed| {
            let mut children = self.not_supervisors(listed);
            children.retain(|child| {
                !self.inherited.contains(child)
                    && children::started(*child).is_some_and(|started| started >= since)
            });
            children
        };
        let listed = left(children::list()?);
        if listed.is_empty() {
            // The kernel's list may lack children while others end.
            return Ok(left(children::list_by_parent()?));
        }
        Ok(listed)
    }

    fn not_supervisors(&self, mut children: Vec<Pid>) -> Vec<Pid> {
        let supervisors = self.supervisors.lock();
        children.retain(|child| !supervisors.running.contains(child));
        children
    }
}
