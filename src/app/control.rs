//! The server as the admin API controls it.

use std::sync::Arc;

use addons::contract::{BoxFuture, Container};

use super::operator::{self, Operator};
use super::{App, explain, sandbox};
use crate::admin::{
    ControlPlane, ExplainRequest, Explanation, Health, NamedTool, OperatorAct, OperatorRequest,
    SandboxSettings,
};
use crate::mcp::{AcceptError, Caller, ClientRequest, Digests, Events, Outcome};

impl ControlPlane for App {
    fn health(&self) -> Health {
        self.checks.health()
    }

    fn reload(&self) -> Result<(), Vec<String>> {
        self.reloader.reload()
    }

    fn sandbox(&self) -> SandboxSettings {
        sandbox::settings(&self.snapshots.current().config, &self.addons.token_sources)
    }

    fn explain(&self, question: ExplainRequest) -> BoxFuture<'_, Result<Explanation, String>> {
        Box::pin(async move {
            let (snapshot, registry) = (self.snapshots.current(), &self.registry);
            match question.method.as_str() {
                operator::TOOL_CALL => {
                    let operator = &self.operator;
                    operator.explain(&snapshot, registry, question).await
                }
                _ => explain::explain(&snapshot, registry, question).await,
            }
        })
    }

    fn mcp(&self, request: OperatorRequest) -> BoxFuture<'_, Outcome> {
        let request = ClientRequest {
            caller: Arc::new(Caller::on_behalf_of(request.container)),
            method: request.method,
            params: request.params,
            tool: None,
            trace: None,
            // Drops progress and log messages.
            events: Events::none(),
        };
        Box::pin(Arc::clone(&self.operator.core).request(request))
    }

    fn lease_began(&self, container: &Arc<Container>) {
        self.operator.core.mounts().lease_begins(container);
    }

    fn audit(&self, act: OperatorAct) {
        operator::audit(&self.addons.audit, act);
    }

    fn definition(&self, tool: NamedTool) -> Result<Digests, AcceptError> {
        let definitions = &self.operator.definitions;
        definitions.digests(&tool.server, &tool.tool)
    }

    fn accept_definition(
        &self,
        tool: NamedTool,
        digest: Option<String>,
    ) -> Result<String, AcceptError> {
        let Operator {
            core, definitions, ..
        } = &self.operator;
        let digest = definitions.accept(&tool.server, &tool.tool, digest.as_deref())?;
        core.mounts().accepted(&tool.server);
        Ok(digest)
    }
}
