//! Retries of requests that are suspended in the gateway until their client sends input.

use std::sync::Arc;

use addons::contract::{Direction, Executing, Frame, McpTarget, RpcError};
use serde_json::value::RawValue;

use super::params::{Change, TASK, edit, quote};
use super::{
    ClientRequest, Core, FoundTool, invalid_params, members, method_not_found, record_end,
    rpc_error,
};

impl Core {
    /// Judges a retry like the call that it continues, by the current limits, abort latch,
    /// definition, security level and policies. Does not send the retry to the server. Returns the
    /// params as they were judged, with the replacements of policies.
    pub async fn judge_retry(
        self: &Arc<Self>,
        request: &ClientRequest,
    ) -> Result<Option<Box<RawValue>>, RpcError> {
        let (settings, name, definition) = match &*request.method {
            "tools/call" => {
                let FoundTool {
                    settings,
                    definition,
                } = self.called_tool(request).await?;
                (settings, Arc::clone(&definition.name), Some(definition))
            }
            "prompts/get" => {
                let (settings, name) = self.named_prompt(request).await?;
                (settings, name, None)
            }
            "resources/read" => {
                let (settings, uri) = self.read_uri(request).await?;
                (settings, uri, None)
            }
            other => return Err(method_not_found(other)),
        };
        // `requestState` comes from the gateway, so the call did not have it when it was judged.
        let original = quote(&name);
        let mut changes: Vec<Change<'_>> = vec![("requestState", None), (TASK, None)];
        if &*request.method != "resources/read" {
            changes.push(("name", Some(&*original)));
        }
        let params = edit(&members(request)?, &changes);
        let params = RawValue::from_string(params);
        let params = params.map_err(|_| invalid_params("params is not an object"))?;
        let (caller, method) = (&request.caller, &request.method);
        let (direction, params) = (Direction::ToServer, Some(params));
        let target = McpTarget::of(&settings.name, definition.as_deref());
        let mut frame = Frame::request(direction, target, Arc::clone(method), params);
        frame.definition = definition;
        if frame.definition.is_none() {
            frame.tools = self.server_tools(caller, &settings.name).await;
        }
        let chain = (self.rules)().chain;
        let mut live = self.flow(&chain, caller, method, Some(&settings.name), Some(&name));
        if let Some(executing) = request.events.call.executing.lock().clone() {
            live.flow.put_slot(Executing {
                continues: true,
                ..executing
            });
        }
        let judged = chain.mcp_request(&mut live.flow, frame).await;
        record_end(&mut live, &judged);
        let permit = judged.map_err(|denial| rpc_error(&denial))?;
        Ok(permit.params().map(ToOwned::to_owned))
    }
}
