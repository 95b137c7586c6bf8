//! A session with a child process.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::incoming::Incoming;
use super::shared::Shared;
use super::writer::Lines;
use crate::mcp::event::Events;
use crate::mcp::message::Outcome;
use crate::mcp::mounts::egress::EgressListener;
use crate::mcp::mounts::process::{ChildPlace, ProcessManager, RunningChild};
use crate::mcp::mounts::{Described, MountError, MountSession};
use crate::mcp::warnings::{Subject, warn};

/// Time limit for a process to end after its standard input was closed. The process gets SIGTERM
/// after half of the limit, and SIGKILL at the limit. The limit is below 5 s, because the process
/// must be gone within 5 s of the end of its lease.
const STOPPING: Duration = Duration::from_secs(3);
/// How long to wait for the last output of an ended process, or for the end of a process whose
/// output has ended.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Resources of a process. They are released after the process and its descendants have ended.
pub(super) struct ProcessResources {
    pub _running: RunningChild,
    pub _egress: Option<EgressListener>,
    pub place: Arc<ChildPlace>,
    pub most_values: usize,
}

/// A process that runs.
pub(super) struct Launched {
    pub process: Arc<dyn ProcessManager>,
    pub resources: ProcessResources,
}

impl Launched {
    /// Ends a process that has no session.
    pub async fn stop(self) {
        self.process.stop(STOPPING).await;
    }
}

/// Serves a process until either it or its session has ended, and ends the other.
pub(super) async fn attend(shared: Arc<Shared>, launched: Launched, lines: Lines) {
    let Launched { process, resources } = launched;
    let mut incoming = Incoming::new(&shared, resources.most_values);
    let mut take = |line: &[u8]| incoming.take(line);
    let reading = async {
        if let Err(error) = process.read_loop(&mut take).await {
            shared.fail(error);
        }
    };
    let exiting = async {
        process.ended().await;
        // The last lines of the process may still be in the pipe.
        tokio::time::sleep(LAST_LINES).await;
    };
    tokio::select! {
        () = reading => {}
        () = exiting => {}
        () = shared.ended.cancelled() => {}
        () = async {
            lines.write_all(&*process, &shared.calls).await;
            std::future::pending().await
        } => {}
    }
    end(&shared, &*process).await;
    drop(resources);
}

/// Ends the session and its calls, and then the process.
async fn end(shared: &Shared, process: &dyn ProcessManager) {
    let wanted = shared.ended.is_cancelled();
    if !wanted {
        // Usually the output has ended because the process is exiting. Waits for the exit code.
        let _ = timeout(LAST_LINES, process.ended()).await;
    }
    shared.fail(MountError::Died {
        exit: process.exit_code(),
    });
    let failure = shared.failure();
    // Cancelled before the calls fail, so that a client that retries gets another session.
    shared.ended.cancel();
    shared.calls.end(&failure);
    process.stop(STOPPING).await;
    let exit_code = process.exit_code();
    match wanted {
        true => tracing::debug!(server = %shared.server, exit_code, "stopped an MCP server"),
        false => warn(&shared.server, Subject::Session, |left_out| {
            tracing::warn!(
                server = %shared.server, left_out, exit_code, reason = %failure,
                "an MCP server ended"
            );
        }),
    }
}

/// An open session.
pub(super) struct StdioSession {
    pub shared: Arc<Shared>,
    pub described: Described,
    pub timeout: Duration,
    pub _ends_when_dropped: DropGuard,
}

impl MountSession for StdioSession {
    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let (method, params) = (permit.method(), permit.params());
            self.shared.send_request(method, params, events, true).await
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let (method, params) = (permit.method(), permit.params());
            let sending = self.shared.send_notification(method, params);
            let sent = timeout(self.timeout, sending).await;
            sent.unwrap_or(Err(MountError::TimedOut))
        })
    }

    fn ended(&self) -> &CancellationToken {
        &self.shared.ended
    }
}
