//! Judges the responses about which another gateway or an agent's hook asks.

use std::sync::Arc;

use addons::contract::{
    Denial, Direction, Frame, INTERCEPTOR, Intercept, LiveFlow, McpPhase, McpTarget,
    PolicyMetadata, RedactedOutcome,
};
use serde_json::value::to_raw_value;

use super::super::contexts::{NoContext, RequestContext, Tool};
use super::intercept::{After, Passed, Ruled};
use super::intercepted_tool::Found;
use super::results::into_outcome;
use super::{Caller, Core, record_end};

/// What the context says of a response, if there is one.
struct Known {
    context: Option<Arc<RequestContext>>,
    /// The tool: that of the context, or else the one that the caller names.
    tool: Option<Tool>,
    method: Arc<str>,
}

impl Core {
    /// Judges a response, with the context of its request, which ends with it.
    pub async fn judge_after(self: &Arc<Self>, caller: Arc<Caller>, after: After) -> Ruled {
        let known = match self.known(&caller, &after) {
            Ok(known) => known,
            Err(no_context) => return self.refuse_after(&caller, &after, no_context.denial()),
        };
        let found = match &known.tool {
            Some(tool) => match self.find(&caller, tool).await {
                Ok(found) => Some(found),
                Err(denial) => return self.refuse_after(&caller, &after, denial),
            },
            None => None,
        };
        let mut live = self.flow_after(&caller, &after, &known, found.as_ref());
        let label = found.as_ref().and_then(Found::label);
        let judged = self
            .judge_outcome(&caller, after, &known.method, found, &mut live)
            .await;
        record_end(&mut live, &judged);
        Ruled {
            verdict: judged,
            metadata: live.flow.take_slot::<PolicyMetadata>().map(|one| one.0),
            label,
        }
    }

    /// Takes the context of a response, or makes one if its id is unknown and the caller names the
    /// tool. Nothing is judged by another tool than the one that was called.
    fn known(&self, caller: &Caller, after: &After) -> Result<Known, NoContext> {
        let call = || Arc::from("tools/call");
        let Some(id) = after.claims.request_id.as_deref() else {
            return Ok(Known {
                context: None,
                tool: after.tool.clone(),
                method: call(),
            });
        };
        let ttl = (self.rules)().settings.context.ttl;
        let check = |context: &RequestContext| {
            if after.tool.as_ref().is_some_and(|tool| !context.is_of(tool)) {
                return Err(NoContext::OfAnotherTool);
            }
            match context.is_denied && after.outcome.is_some() {
                true => Err(NoContext::Denied),
                false => Ok(()),
            }
        };
        let taken = self.contexts.take(caller.container.lease, id, ttl, check);
        let (context, tool) = match (taken, &after.tool) {
            (Ok(context), _) => {
                let tool = context.tool.clone();
                (context, tool)
            }
            (Err(NoContext::Unknown), Some(tool)) => {
                let mut made = RequestContext::new(id.into(), call());
                made.agent_id.clone_from(&after.claims.agent_id);
                (Arc::new(made), Some(tool.clone()))
            }
            (Err(no_context), _) => return Err(no_context),
        };
        context.ended(None);
        Ok(Known {
            method: Arc::clone(&context.method),
            context: Some(context),
            tool,
        })
    }

    fn flow_after(
        &self,
        caller: &Caller,
        after: &After,
        known: &Known,
        found: Option<&Found>,
    ) -> LiveFlow {
        let (claims, context) = (&after.claims, known.context.as_ref());
        let asked = (McpPhase::After, claims);
        let mut live = self.flow_of(caller, asked, &known.method, known.tool.as_ref(), found);
        let params = context.and_then(|context| context.params.as_deref());
        let own = context.and_then(|context| context.traceparent.as_ref());
        live.flow.put_slot(Intercept {
            tool_id: claims.tool_id.clone(),
            agent_id: claims.agent_id.clone(),
            session: claims.session.clone(),
            context: context.map(|context| context.to_json().into()),
            decision_before: context.and_then(|context| context.decision),
            params: params.or(after.params.as_deref()).map(ToOwned::to_owned),
            traceparent: claims.traceparent.as_ref().or(own).cloned(),
            is_unattributed: known.tool.is_none() && context.is_none(),
            ..Intercept::default()
        });
        // The approval is for the tool that was judged: a reload may have given its name to another.
        if let Some(context) = context
            && context.target == found.map(Found::target)
            && let Some(executing) = context.executing.clone()
        {
            live.flow.put_slot(executing);
        }
        live
    }

    async fn judge_outcome(
        &self,
        caller: &Caller,
        after: After,
        method: &Arc<str>,
        found: Option<Found>,
        live: &mut LiveFlow,
    ) -> Result<Passed, Denial> {
        let mut passed = Passed {
            modified: None,
            is_approved: false,
        };
        let Some(outcome) = after.outcome else {
            return Ok(passed);
        };
        let _permits = self.begin(&caller.container)?;
        let target = match &found {
            Some(found) => found.target(),
            None => McpTarget::Server(INTERCEPTOR.into()),
        };
        let mut frame = Frame::response(Direction::ToServer, target, Arc::clone(method), outcome);
        frame.definition = found.map(|found| found.definition);
        let chain = Arc::clone(&live.chain);
        chain.mcp_report(&mut live.flow, &mut frame).await?;
        if live.flow.take_slot::<RedactedOutcome>().is_some() {
            passed.modified = Some(match into_outcome(frame)? {
                Ok(result) => result,
                Err(error) => to_raw_value(&error).map_err(|_| Denial::internal())?,
            });
        }
        Ok(passed)
    }

    fn refuse_after(&self, caller: &Caller, after: &After, denial: Denial) -> Ruled {
        let (asked, tool) = ((McpPhase::After, &after.claims), after.tool.as_ref());
        let mut live = self.flow_of(caller, asked, &"tools/call".into(), tool, None);
        live.denied(&denial);
        Ruled::refused(denial)
    }
}
