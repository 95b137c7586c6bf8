//! Metrics of tool calls.

use std::time::Instant;

use addons::mcp::{Execution, ExecutionStatus, McpMetrics, ServerKind};
use addons::raw_json::Members;
use serde_json::value::RawValue;

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

    /// Sets the status from the server's answer or failure, and records the call.
    pub fn end(mut self, answer: &Result<Outcome, MountError>) {
        self.ended = Some(match answer {
            Ok(Ok(result)) if is_error(result) => (ExecutionStatus::Error, None),
            Ok(Ok(_)) => (ExecutionStatus::Ok, None),
            Ok(Err(_)) => (ExecutionStatus::Error, None),
            Err(MountError::TimedOut) => (ExecutionStatus::TimedOut, None),
            Err(MountError::Died { exit }) => (ExecutionStatus::Unavailable, *exit),
            Err(_) => (ExecutionStatus::Unavailable, None),
        });
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
            tool: &definition.name,
            runtime: match &self.target.settings.kind {
                ServerKind::Stdio(_) => "local",
                ServerKind::Http(_) => "http",
                ServerKind::CodingSidecar(_) => "coding_sidecar",
                ServerKind::E2b(_) => "e2b",
            },
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
