//! Counts tool calls and changed definitions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// Limit on the tools that have a separate label. Calls of further tools are counted as `other`,
/// since a server may list an unbounded number of names.
const MAX_TOOLS: usize = 1000;
/// The label of tools without a separate label.
const OTHER: &str = "other";

/// Metrics of tool calls, changed definitions and the interceptor API. Created once and kept over
/// reloads.
#[derive(Clone)]
pub struct McpMetrics {
    /// The request contexts that are kept.
    pub contexts: IntGauge,
    intercepts: IntCounterVec,
    intercept_durations: HistogramVec,
    executions: IntCounterVec,
    durations: HistogramVec,
    changes: IntCounterVec,
    tools: Arc<Mutex<HashSet<Arc<str>>>>,
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionStatus {
    /// With a result.
    Ok,
    /// With an error of the server, or a result with `isError: true`.
    Error,
    /// The time limit was exceeded.
    TimedOut,
    /// The server could not be started or reached, or ended.
    Unavailable,
    /// The client cancelled the call.
    Cancelled,
}

impl ExecutionStatus {
    /// The label of the metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::TimedOut => "timeout",
            Self::Unavailable => "unavailable",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A call that was sent to a server, or whose server could not be started or reached.
#[derive(Clone, Copy, Debug)]
pub struct Execution<'e> {
    /// The server.
    pub server: &'e str,
    /// The server's own name for the tool, from the tool's definition; `None` if the definition is
    /// not known.
    pub tool: Option<&'e str>,
    /// The runtime of the server: `local`, `http`, `coding_sidecar` or `e2b`.
    pub runtime: &'static str,
    /// How the call ended.
    pub status: ExecutionStatus,
    /// The exit code of a server that ended during the call.
    pub exit_code: Option<i32>,
    /// The duration of the call.
    pub duration: Duration,
}

impl McpMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            contexts: IntGauge::new(
                "proxy_mcp_contexts_active",
                "Request contexts of the interceptor API that are kept",
            )?,
            intercepts: IntCounterVec::new(
                Opts::new(
                    "proxy_mcp_intercepts_total",
                    "Questions of other gateways and of hooks about tool calls, by type, action and tool",
                ),
                &["type", "action", "tool"],
            )?,
            intercept_durations: HistogramVec::new(
                HistogramOpts::new(
                    "proxy_mcp_intercept_duration_seconds",
                    "Time to answer a question of another gateway or of a hook, in seconds, by type and tool",
                ),
                &["type", "tool"],
            )?,
            executions: IntCounterVec::new(
                Opts::new(
                    "proxy_mcp_tool_executions_total",
                    "Tool calls that were sent to MCP servers or whose server was unavailable, by tool, runtime and outcome",
                ),
                &["tool", "runtime", "status", "exit_code"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "proxy_mcp_tool_execution_duration_seconds",
                    "Duration of tool calls in seconds, by tool and runtime",
                ),
                &["tool", "runtime"],
            )?,
            changes: IntCounterVec::new(
                Opts::new(
                    "proxy_mcp_definition_changes_total",
                    "Definitions of tools that differ from the accepted one, by MCP server",
                ),
                &["server"],
            )?,
            tools: Arc::default(),
        };
        registry.register(Box::new(metrics.contexts.clone()))?;
        registry.register(Box::new(metrics.intercepts.clone()))?;
        registry.register(Box::new(metrics.intercept_durations.clone()))?;
        registry.register(Box::new(metrics.executions.clone()))?;
        registry.register(Box::new(metrics.durations.clone()))?;
        registry.register(Box::new(metrics.changes.clone()))?;
        Ok(metrics)
    }

    /// Counts a finished call. A call without a tool's name is counted as `other`.
    pub fn executed(&self, execution: &Execution<'_>) {
        let tool = match execution.tool {
            Some(tool) => self.label(execution.server, tool),
            None => OTHER.into(),
        };
        let exit_code = execution.exit_code.map(|code| code.to_string());
        let exit_code = exit_code.as_deref().unwrap_or("none");
        let status = execution.status.as_str();
        let labels = [&*tool, execution.runtime, status, exit_code];
        self.executions.with_label_values(&labels).inc();
        self.durations
            .with_label_values(&[&*tool, execution.runtime])
            .observe(execution.duration.as_secs_f64());
    }

    /// Counts an answer of the interceptor API. `kind` is `before` or `after`, `action` is `pass`,
    /// `block` or `modify`. `tool` is the server and the tool, `None` unless the file or a server's
    /// list names it.
    pub fn intercepted(
        &self,
        (kind, action): (&'static str, &'static str),
        tool: Option<(&str, &str)>,
        duration: Duration,
    ) {
        let tool = tool.map_or_else(|| OTHER.into(), |(server, tool)| self.label(server, tool));
        let labels = [kind, action, &*tool];
        self.intercepts.with_label_values(&labels).inc();
        self.intercept_durations
            .with_label_values(&[kind, &*tool])
            .observe(duration.as_secs_f64());
    }

    /// Creates the time series of a server in `proxy_mcp_definition_changes_total`, with the value
    /// 0.
    pub fn name_server(&self, server: &str) {
        self.changes.with_label_values(&[server]);
    }

    /// Counts a definition that differs from the accepted one.
    pub fn definition_changed(&self, server: &str) {
        self.changes.with_label_values(&[server]).inc();
    }

    /// The label of a tool: `{server}_{tool}`, or `other` beyond [`MAX_TOOLS`].
    fn label(&self, server: &str, tool: &str) -> Arc<str> {
        let name = [server, "_", tool].concat();
        let mut tools = self.tools.lock();
        if let Some(known) = tools.get(&*name) {
            return Arc::clone(known);
        }
        if tools.len() >= MAX_TOOLS {
            return OTHER.into();
        }
        let name: Arc<str> = name.into();
        tools.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use proptest::prelude::*;

    use super::*;

    fn text(registry: &Registry) -> String {
        TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap()
    }

    fn any_status() -> impl Strategy<Value = ExecutionStatus> {
        use ExecutionStatus::{Cancelled, Error, Ok, TimedOut, Unavailable};
        prop::sample::select(vec![Ok, Error, TimedOut, Unavailable, Cancelled])
    }

    proptest! {
        // Feature: unified-sidecar, Property 10: Metrics Emission Consistency
        #[test]
        fn each_execution_has_its_tool_runtime_status_exit_code_and_duration(
            server in "[a-z0-9-]{1,10}",
            tool in "[!-~]{1,20}",
            runtime in prop::sample::select(vec!["local", "http", "e2b"]),
            status in any_status(),
            exit_code in prop::option::of(-1..256_i32),
            millis in 0..100_000_u64,
        ) {
            let registry = Registry::new();
            let metrics = McpMetrics::new(&registry).unwrap();
            let duration = Duration::from_millis(millis);
            metrics.executed(&Execution { server: &server, tool: Some(&tool), runtime, status, exit_code, duration });
            let text = text(&registry);
            let name = format!("{server}_{tool}").replace('\\', "\\\\").replace('"', "\\\"");
            let exit_code = exit_code.map_or("none".to_owned(), |code| code.to_string());
            let status = status.as_str();
            let counted = format!(
                "proxy_mcp_tool_executions_total{{exit_code=\"{exit_code}\",runtime=\"{runtime}\",status=\"{status}\",tool=\"{name}\"}} 1"
            );
            prop_assert!(text.contains(&counted), "{counted} is not in\n{text}");
            let labels = format!("{{runtime=\"{runtime}\",tool=\"{name}\"}}");
            let timed = format!("proxy_mcp_tool_execution_duration_seconds_count{labels} 1");
            prop_assert!(text.contains(&timed), "{timed} is not in\n{text}");
        }
    }

    #[test]
    fn calls_of_tools_beyond_the_limit_count_as_other_and_definition_changes_count_per_server() {
        let registry = Registry::new();
        let metrics = McpMetrics::new(&registry).unwrap();
        for n in 0..2 * MAX_TOOLS {
            metrics.executed(&Execution {
                server: "kb",
                tool: Some(&format!("t{n}")),
                runtime: "local",
                status: ExecutionStatus::Ok,
                exit_code: None,
                duration: Duration::ZERO,
            });
        }
        metrics.definition_changed("kb");
        let text = text(&registry);
        let counters = text
            .lines()
            .filter(|line| line.starts_with("proxy_mcp_tool_executions_total{"));
        assert_eq!(counters.count(), MAX_TOOLS + 1);
        let other = format!("tool=\"other\"}} {MAX_TOOLS}");
        assert!(text.contains(&other));
        assert!(text.contains("proxy_mcp_definition_changes_total{server=\"kb\"} 1"));
    }
}
