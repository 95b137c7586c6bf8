//! Counts and limits child processes, for each lease and in total.

use std::sync::Arc;

use addons::contract::Container;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Runtime;
use crate::mcp::mounts::MountError;

/// The most children of one lease at once.
pub const MAX_CHILDREN_OF_LEASE: usize = 32;
/// The most children at once, of all leases and of shared sessions together.
pub const MAX_CHILDREN: usize = 256;

/// The children of all mounts.
pub struct Children {
    all: Arc<Semaphore>,
    alive: TaskTracker,
    status: IntGaugeVec,
}

/// A child's place within the limits, held until all its processes are gone.
pub struct ChildPlace {
    _permits: Vec<OwnedSemaphorePermit>,
    _alive: TaskTrackerToken,
}

/// Counts a child as running until it is dropped.
pub struct RunningChild(IntGauge);

impl Drop for RunningChild {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The children of one lease.
struct OfLease(Arc<Semaphore>);

impl Children {
    /// Registers `proxy_mcp_process_status`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_mcp_process_status",
            "Running processes of stdio MCP servers, by server and runtime.",
        );
        let status = IntGaugeVec::new(opts, &["server", "runtime"])?;
        registry.register(Box::new(status.clone()))?;
        let alive = TaskTracker::new();
        alive.close();
        Ok(Self {
            all: Arc::new(Semaphore::new(MAX_CHILDREN)),
            alive,
            status,
        })
    }

    /// Takes a place for a child of a lease, or for a shared child. Fails if
    /// [`MAX_CHILDREN_OF_LEASE`] or [`MAX_CHILDREN`] is reached.
    pub fn place(&self, container: Option<&Container>) -> Result<ChildPlace, MountError> {
        let mut permits = Vec::with_capacity(2);
        if let Some(container) = container {
            let OfLease(own) = container
                .state_or_init(|| OfLease(Arc::new(Semaphore::new(MAX_CHILDREN_OF_LEASE))));
            let own = Arc::clone(own).try_acquire_owned();
            permits.push(own.map_err(|_full| full(MAX_CHILDREN_OF_LEASE, "for the container"))?);
        }
        let all = Arc::clone(&self.all).try_acquire_owned();
        permits.push(all.map_err(|_full| full(MAX_CHILDREN, "in total"))?);
        Ok(ChildPlace {
            _permits: permits,
            _alive: self.alive.token(),
        })
    }

    /// As [`place`](Self::place), for a child that no client has asked for. Fails if such children
    /// would take more than half of all places.
    pub fn early_place(&self, container: &Container) -> Result<ChildPlace, MountError> {
        if self.all.available_permits() <= MAX_CHILDREN / 2 {
            return Err(full(MAX_CHILDREN / 2, "in total"));
        }
        self.place(Some(container))
    }

    /// Creates the time series of a server in `proxy_mcp_process_status`, with the value 0.
    pub fn name_server(&self, server: &str, runtime: Runtime) {
        self.status(server, runtime);
    }

    /// Counts a child of a server as running.
    pub fn running(&self, server: &str, runtime: Runtime) -> RunningChild {
        let status = self.status(server, runtime);
        status.inc();
        RunningChild(status)
    }

    fn status(&self, server: &str, runtime: Runtime) -> IntGauge {
        self.status.with_label_values(&[server, runtime.as_str()])
    }

    /// Waits until all children are gone.
    pub async fn settled(&self) {
        self.alive.wait().await;
    }
}

fn full(most: usize, whose: &str) -> MountError {
    MountError::CannotStart(format!(
        "{most} processes of MCP servers already run {whose}"
    ))
}
