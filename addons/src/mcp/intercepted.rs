//! Calls of the interceptor API: their built-in servers, and the approval that a call at the gateway
//! takes over.

use std::sync::Arc;

use super::call::ToolCall;
use crate::contract::{CLAUDE_CODE, Executing, Flow, Handover, INTERCEPTOR, Intercept};

/// The servers of tools that other gateways and agents run. No server of `mcp.yaml` has these names.
pub(super) const BUILT_IN: [&str; 2] = [INTERCEPTOR, CLAUDE_CODE];

/// Whether a flow of the interceptor API is about a tool that no configured server has.
pub(super) fn is_built_in(flow: &Flow, server: &str) -> bool {
    let intercept = flow.find_slot::<Intercept>();
    intercept.is_some_and(|one| !one.is_at_gateway) && BUILT_IN.contains(&server)
}

/// The approval that a flow has taken over, in a slot until its call is judged.
struct TakenOver(Arc<Handover>);

/// Takes over the approval that `before` got, if it is for this call.
pub(super) fn take_over(flow: &mut Flow, call: &ToolCall<'_>, args_sha256: &str) {
    let intercept = flow.find_slot::<Intercept>();
    let Some(handover) = intercept.and_then(|one| one.handover.clone()) else {
        return;
    };
    let tool = (&*call.target.server, &*call.definition.name);
    let Some(executing) = handover.take(tool, args_sha256) else {
        return;
    };
    if let Some(approval) = &handover.approval {
        flow.approval_record().set(approval);
    }
    flow.put_slot(executing);
    flow.put_slot(TakenOver(handover));
}

/// Gives the approval of a denied call back.
pub(super) fn give_back(flow: &mut Flow) {
    if let Some(TakenOver(handover)) = flow.take_slot()
        && let Some(executing) = flow.take_slot::<Executing>()
    {
        handover.give_back(executing);
    }
}
