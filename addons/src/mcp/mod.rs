//! MCP: the settings of mounted servers, the tools that a container sees, and the verdict on each
//! message.

mod arguments;
mod call;
mod changed;
mod classification;
mod client_text;
mod definition;
mod denials;
mod exposed;
mod gate;
mod gateway;
mod input;
mod input_requests;
mod intercepted;
mod level;
mod metrics;
mod overrides;
mod people;
mod policies;
mod reserved;
mod revision;
mod ruling;
mod schema;
mod settings;
mod shapes;
mod suspicious;
mod uri;

use std::sync::Arc;

use futures_util::FutureExt;

use crate::contract::{
    AcceptedDefinitions, Addon, ApprovalLedger, Evaluator, Flow, Frame, LeaseRecords, Order, Step,
    Tasks, Verdict, names,
};

pub use definition::{DefinitionError, ListedTool};
pub use denials::accept_command;
pub use exposed::{Exposed, ExposedPrompt, ExposedPrompts, ExposedTool, Listing, Problem};
pub use input_requests::MAX_INPUT_REQUESTS;
pub use metrics::{Execution, ExecutionStatus, McpMetrics};
pub use people::OpenQuestion;
pub use revision::bundles_revision;
pub use settings::{
    AgentToken, Bundle, CodingEndpoint, CodingSettings, CommandPolicy, Confine, ContextSettings,
    E2bSettings, HiddenValue, HttpSettings, HttpTransport, HumanJwt, Injected, InterceptorSettings,
    MAX_EXPOSED_NAME, McpSettings, OnChange, OnUnavailable, OverrideRule, OverrideRules,
    PersonWaits, PoliciesSettings, Policy, PolicyServer, PolisSettings, Scope, ServerKind,
    ServerSettings, StdioSettings, TokenSettings,
};
pub use suspicious::looks_like_instruction;

const TOOLS_CALL: &str = "tools/call";

/// The services of the proxy that the addon uses.
#[derive(Clone)]
pub struct McpPorts {
    /// Evaluates policies.
    pub evaluator: Arc<dyn Evaluator>,
    /// Stores the security level and the abort latch of a lease.
    pub records: Arc<dyn LeaseRecords>,
    /// Asks people, and knows what they granted.
    pub ledger: Arc<dyn ApprovalLedger>,
    /// The accepted definitions of tools.
    pub accepted: Arc<dyn AcceptedDefinitions>,
    /// Reads large params and results on a blocking thread. Completes a write to `records` even if
    /// the request that caused the write ends first.
    pub tasks: Arc<dyn Tasks>,
}

/// Judges tool calls and other MCP messages.
pub struct Mcp {
    settings: Arc<McpSettings>,
    ports: McpPorts,
}

impl Mcp {
    /// Creates an addon that judges messages by these settings.
    #[must_use]
    pub fn new(settings: Arc<McpSettings>, ports: McpPorts) -> Self {
        Self { settings, ports }
    }

    /// Returns the verdict at once if `judging` is ready at its first poll, as for most messages.
    fn step<'a>(&self, judging: impl Future<Output = Verdict> + Send + 'a) -> Step<'a> {
        let mut judging = Box::pin(judging);
        if let Some(verdict) = (&mut judging).now_or_never() {
            return verdict.into();
        }
        let timeout = self.settings.policies.timeout;
        let limit = timeout.saturating_add(gate::STEP_MARGIN);
        Step::wait_up_to(limit, judging)
    }
}

impl Addon for Mcp {
    fn name(&self) -> &'static str {
        names::MCP
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY, names::RATE_LIMIT, names::POLICY],
            before: &[names::CREDENTIALS],
        }
    }

    fn mcp_request<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        self.step(self.judge_request(flow, frame))
    }

    fn mcp_response<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        self.step(self.judge_response(flow, frame))
    }

    fn mcp_report<'a>(&'a self, flow: &'a mut Flow, frame: &'a mut Frame) -> Step<'a> {
        self.step(self.judge_response(flow, frame))
    }
}

#[cfg(test)]
mod tests;
