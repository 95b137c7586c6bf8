//! Predicts what the policies decide about a call, for the tool `decide` of `policy_reader`.

use std::sync::{Arc, Weak};

use addons::contract::{
    BoxFuture, Code, Container, Direction, Effect, Frame, McpSubject, McpTarget,
};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::caller::Caller;
use super::core::Core;
use super::mounts::{Advice, Advisor};

/// The method of a tool call.
const TOOL_CALL: &str = "tools/call";

/// Judges calls in dry runs, by the configuration in force.
pub struct DryRuns(Weak<Core>);

impl DryRuns {
    pub fn new(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }

    async fn judge(
        &self,
        container: Arc<Container>,
        tool: String,
        arguments: Option<Box<RawValue>>,
    ) -> Result<Advice, String> {
        let core = self.0.upgrade().ok_or("the server stops")?;
        let caller = Arc::new(Caller::on_behalf_of(container));
        let found = core.tool(&caller, &tool).await;
        let found = found.ok_or_else(|| format!("Unknown tool: {tool}"))?;
        let (server, definition) = (found.server(), found.definition);
        let arguments =
            arguments.unwrap_or_else(|| RawValue::from_string("{}".into()).unwrap_or_default());
        let params = json!({ "name": &*definition.name, "arguments": arguments });
        let params = to_raw_value(&params).map_err(|error| error.to_string())?;
        let subject = McpSubject {
            server: Some(Arc::clone(&server)),
            method: TOOL_CALL.into(),
            name: Some(Arc::clone(&definition.name)),
        };
        let chain = core.chain();
        let mut start = chain.for_mcp(caller.client.clone(), subject);
        start.principal = Some(caller.principal.clone());
        let mut flow = start.begin_dry();
        let target = McpTarget::of(&server, Some(&definition));
        let frame = Frame::request(Direction::ToServer, target, TOOL_CALL, Some(params));
        let verdict = chain
            .mcp_request(&mut flow, frame.of_tool(definition))
            .await;
        let record = flow.mcp_record();
        let decided = record.decision;
        let reason = record.reason.as_deref().unwrap_or_default().to_owned();
        match verdict {
            Ok(_unused) => Ok(Advice {
                // A grant of a person answers the question.
                decision: decided
                    .filter(|effect| *effect <= Effect::Redact)
                    .unwrap_or(Effect::Allow),
                rationale: match decided {
                    None => "no policy covers the call".to_owned(),
                    Some(_) => reason,
                },
            }),
            Err(denial) => {
                let decision = match (denial.code(), decided) {
                    (Code::PolicyDenied, _) => Effect::DenyAbort,
                    (Code::PolicyDeniedContinue, Some(Effect::Ask)) => Effect::Ask,
                    (Code::PolicyDeniedContinue, _) => Effect::DenyContinue,
                    // The policies gave no decision.
                    _ => return Err(denial.sentence().to_owned()),
                };
                Ok(Advice {
                    decision,
                    rationale: denial.sentence().to_owned(),
                })
            }
        }
    }
}

impl Advisor for DryRuns {
    fn advise(
        &self,
        container: Arc<Container>,
        tool: String,
        arguments: Option<Box<RawValue>>,
    ) -> BoxFuture<'_, Result<Advice, String>> {
        Box::pin(self.judge(container, tool, arguments))
    }
}
