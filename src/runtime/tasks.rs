//! Tasks of addons that outlive a request.

use addons::contract::{BoxFuture, Tasks};

/// Spawns tasks on the caller's Tokio runtime. Panics outside a runtime, but every flow and every
/// command of the admin API runs inside one.
pub struct TokioTasks;

impl Tasks for TokioTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(work);
    }
}
