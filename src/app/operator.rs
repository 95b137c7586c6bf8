//! MCP over the admin socket, for operators.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    Container, Definition, Direction, FlowStart, Frame, Kind, McpSubject, McpTarget, Principal,
    Subject,
};
use addons::observe::Audit;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::explain::{client, find, report};
use crate::admin::{ExplainRequest, Explanation, OperatorAct, listed};
use crate::approvals::Scope;
use crate::mcp::{Caller, Core, DefinitionFile, People};
use crate::registry::Registry;
use crate::snapshot::Snapshot;

/// The MCP method of a tool call.
pub const TOOL_CALL: &str = "tools/call";

/// The parts of the gateway that the admin API uses.
pub struct Operator {
    pub core: Arc<Core>,
    pub definitions: Arc<DefinitionFile>,
    pub people: Arc<People>,
}

/// Writes an operator's act to the audit log.
pub fn audit(audit: &Audit, act: OperatorAct) {
    let subject = McpSubject {
        server: act.server,
        method: act.method.into(),
        name: act.name,
    };
    let subject = Subject::Mcp(subject);
    let mut start = FlowStart::new(Kind::Mcp, Default::default(), subject, None);
    start.principal = act.container.map(Principal::from);
    let mut flow = start.begin();
    let by = act.by.unwrap_or_else(|| format!("uid {}", act.uid));
    flow.set_rule(format!("operator: {by}"));
    let record = flow.mcp_record();
    let scope = act.scope.map(|scope| match scope {
        Scope::For(time) => format!("for {}s", time.as_secs()),
        scope => scope.as_str().to_owned(),
    });
    let said = scope.as_deref().into_iter().chain(act.reason.as_deref());
    let said = said.collect::<Vec<_>>().join(": ");
    record.reason = Some(said).filter(|said| !said.is_empty()).map(Into::into);
    let approval = flow.approval_record();
    approval.id = act.approval.map(Into::into);
    approval.waited = act.waited;
    let done = addons::contract::Outcome {
        status: 200,
        denial: None,
        aborted: false,
        duration: Duration::ZERO,
    };
    audit.operated(&flow, &done);
}

impl Operator {
    /// Judges a tool call in a dry run; the call is not sent to the server. Returns an error if the
    /// question is incomplete, or if the server cannot list its tools. Also returns an error if the
    /// container, the server or the tool cannot be found.
    pub async fn explain(
        &self,
        snapshot: &Snapshot,
        registry: &Registry,
        question: ExplainRequest,
    ) -> Result<Explanation, String> {
        let container = find(registry, &question.container)?;
        let (Some(server), Some(tool)) = (&question.server, &question.tool) else {
            return Err(format!("{TOOL_CALL} needs the fields `server` and `tool`"));
        };
        let definition = self.definition(&container, server, tool).await?;
        let arguments = question.arguments.map_or_else(|| json!({}), Value::Object);
        let params = json!({ "name": tool, "arguments": arguments });
        let params = to_raw_value(&params).map_err(|error| error.to_string())?;
        let server: Arc<str> = server.as_str().into();
        let subject = McpSubject {
            server: Some(Arc::clone(&server)),
            method: TOOL_CALL.into(),
            name: Some(tool.as_str().into()),
        };
        let chain = snapshot.chain();
        let mut start = chain.for_mcp(client(&container), subject);
        start.principal = Some(Principal::from(container));
        let mut flow = start.begin_dry();
        let target = McpTarget::of(&server, Some(&definition));
        let frame = Frame::request(Direction::ToServer, target, TOOL_CALL, Some(params));
        let verdict = chain
            .mcp_request(&mut flow, frame.of_tool(definition))
            .await;
        Ok(report(snapshot, &flow, verdict.err()))
    }

    /// Returns the definition of a tool from the known list of the server's tools. If no list is
    /// known, or the list lacks the tool, gets the list over a session with the server.
    async fn definition(
        &self,
        container: &Arc<Container>,
        server: &str,
        tool: &str,
    ) -> Result<Arc<Definition>, String> {
        let mounts = self.core.mounts();
        let mount = mounts.find(container, server).ok_or_else(|| {
            let mounted = mounts.health(Some(&**container)).into_iter();
            let mounted: Vec<_> = mounted.map(|mount| mount.server).collect();
            let mounted = match mounted.as_slice() {
                [] => "no server is".to_owned(),
                names => format!("mounted: {}", listed(names)),
            };
            format!(
                "no server {server} is mounted for {}; {mounted}: see mcpServers in mcp.yaml",
                container.id
            )
        })?;
        let find = |tools: &[Arc<Definition>]| {
            let found = tools.iter().find(|definition| *definition.name == *tool);
            found.map(Arc::clone)
        };
        let known = mount.known(container).tools;
        if let Some(definition) = known.as_deref().and_then(find) {
            return Ok(definition);
        }
        let failed = |error: &dyn ToString| format!("{server}: {}", error.to_string());
        let pooled = mount
            .session(&Caller::on_behalf_of(Arc::clone(container)))
            .await;
        let pooled = pooled.map_err(|error| failed(&error))?;
        let tools = pooled.catalog.tools().await;
        let tools = tools.map_err(|error| failed(&error))?;
        find(&tools).ok_or_else(|| {
            let names: Vec<_> = tools.iter().map(|definition| &definition.name).collect();
            format!(
                "{server} lists no tool {tool}; by the server's own names, it lists: {}",
                listed(&names)
            )
        })
    }
}
