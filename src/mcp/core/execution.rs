//! Metrics of tool calls.

use addons::json::Members;
use addons::mcp::{Execution, ExecutionStatus, McpMetrics, ServerKind, ServerSettings};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::target::Target;
use super::{MountError, Outcome};

/// A tool call under way. It counts as cancelled when it is dropped before [`Running::end`].
pub(super) struct Running<'a> {
    metrics: &'a McpMetrics,
    target: &'a Target,
    begun: Instant,
    ended: Option<(ExecutionStatus, Option<i32>)>,
}

impl<'a> Running<'a> {
    /// Starts the measurement of a call; `None` for a request that calls no tool.
    pub fn begin(metrics: &'a McpMetrics, target: &'a Target) -> Option<Self> {
        target.definition.as_ref()?;
        Some(Self {
            metrics,
            target,
            begun: Instant::now(),
            ended: None,
        })
    }

    /// Sets the status from the server's response or failure, and records the call.
    pub fn end(mut self, response: &Result<Outcome, MountError>) {
        self.ended = Some(match response {
            Ok(Ok(result)) if is_error(result) => (ExecutionStatus::Error, None),
            Ok(Ok(_)) => (ExecutionStatus::Ok, None),
            Ok(Err(_)) => (ExecutionStatus::Error, None),
            Err(error) => of_failure(error),
        });
    }
}

/// Records a call that was not sent, because no session with its server could be opened. `tool` is
/// the tool's name as the server lists it; `None` if the server's tools are not known.
pub(super) fn record_unsent(
    metrics: &McpMetrics,
    server: &ServerSettings,
    tool: Option<&str>,
    error: &MountError,
    begun: Instant,
) {
    let (status, exit_code) = of_failure(error);
    metrics.executed(&Execution {
        server: &server.name,
        tool,
        runtime: runtime(&server.kind),
        status,
        exit_code,
        duration: begun.elapsed(),
    });
}

/// The exit code of a server that ended during the call.
pub(super) fn exit_code(response: &Result<Outcome, MountError>) -> Option<i32> {
    response
        .as_ref()
        .err()
        .and_then(|error| of_failure(error).1)
}

fn of_failure(error: &MountError) -> (ExecutionStatus, Option<i32>) {
    match error {
        MountError::TimedOut => (ExecutionStatus::TimedOut, None),
        MountError::Died { exit } => (ExecutionStatus::Unavailable, *exit),
        _ => (ExecutionStatus::Unavailable, None),
    }
}

fn runtime(kind: &ServerKind) -> &'static str {
    match kind {
        ServerKind::Stdio(_) => "local",
        ServerKind::Http(_) => "http",
        ServerKind::CodingSidecar(_) => "coding_sidecar",
        ServerKind::E2b(_) => "e2b",
        ServerKind::Policy(_) => "gateway",
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Some(definition) = &self.target.definition else {
            return;
        };
        let (status, exit_code) = self.ended.unwrap_or((ExecutionStatus::Cancelled, None));
        self.metrics.executed(&Execution {
            server: &self.target.settings.name,
            tool: Some(&definition.name),
            runtime: runtime(&self.target.settings.kind),
            status,
            exit_code,
            duration: self.begun.elapsed(),
        });
    }
}

/// Whether a result has `isError: true`.
fn is_error(result: &RawValue) -> bool {
    // Avoids parsing: nearly all results lack these words, and some results are large.
    let text = result.get();
    let may_be = text.contains("isError") && text.contains("true");
    may_be && Members::read(result).is_ok_and(|members| members.get("isError") == Some("true"))
}
