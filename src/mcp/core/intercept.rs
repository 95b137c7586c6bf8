//! Judges requests about which another gateway or an agent's hook asks: tool calls above all.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    CLAUDE_CODE, Container, Denial, Direction, Effect, Executing, Frame, Handover, INTERCEPTOR,
    Intercept, LiveFlow, McpPhase, McpTarget, PolicyMetadata, RedactedArguments, SpanParent,
};
use addons::mcp::OpenQuestion;
use serde_json::value::RawValue;

use super::super::contexts::{MAX_PARAMS, RequestContext, Tool};
use super::intercepted_tool::Found;
use super::judged_call::{JudgedCall, Refused};
use super::people::hold;
use super::{Caller, Core, Outcome, record_end};

/// The longest reason that a context keeps, in bytes.
const MAX_REASON: usize = 512;

/// What a caller says of a call. Nothing of it is proven.
#[derive(Clone, Default)]
pub struct Claims {
    /// Names the request context; `None` in dialects without such an id.
    pub request_id: Option<Box<str>>,
    pub tool_id: Option<Box<str>>,
    pub agent_id: Option<Box<str>>,
    pub session: Option<Box<str>>,
    /// The `traceparent` of the HTTP request.
    pub traceparent: Option<Box<str>>,
}

/// A question about a request: may it be sent?
pub struct Before {
    pub claims: Claims,
    pub method: Arc<str>,
    /// The tool that the request calls; `None` for a method other than `tools/call`.
    pub tool: Option<Tool>,
    pub params: Option<Box<RawValue>>,
}

/// A question about a response: may the agent see it?
pub struct After {
    pub claims: Claims,
    /// The tool, if the caller names it. A response without a tool and without a `request_id` is
    /// judged by what can be judged without its call.
    pub tool: Option<Tool>,
    /// The params of the request, if the caller sends them.
    pub params: Option<Box<RawValue>>,
    /// `None` if there is nothing to judge: the call failed, or its result is a denial of ours.
    pub outcome: Option<Outcome>,
}

/// A request or response that passes.
pub struct Passed {
    /// Replaces the arguments of the request, or the result.
    pub modified: Option<Box<RawValue>>,
    /// Whether a person approved the call.
    pub is_approved: bool,
}

/// The verdict on a question. It is recorded in the flow of the question.
pub struct Ruled {
    pub verdict: Result<Passed, Denial>,
    pub metadata: Option<Box<RawValue>>,
    /// The server and the tool, if the file or a server's list names the tool.
    pub label: Option<(Arc<str>, Arc<str>)>,
}

impl Ruled {
    /// The verdict on a question that the chain did not judge.
    pub(super) fn refused(denial: Denial) -> Self {
        Self {
            verdict: Err(denial),
            metadata: None,
            label: None,
        }
    }
}

impl Core {
    /// The request context of a lease's call, if there is one that has not expired.
    pub fn context(&self, container: &Container, id: &str) -> Option<Arc<RequestContext>> {
        let ttl = (self.rules)().settings.context.ttl;
        self.contexts.find(container.lease, id, ttl).ok()
    }

    /// Counts an answer of the interceptor API.
    pub fn intercepted(
        &self,
        labels: (&'static str, &'static str),
        tool: Option<(Arc<str>, Arc<str>)>,
        duration: Duration,
    ) {
        let tool = tool.as_ref().map(|(server, tool)| (&**server, &**tool));
        self.metrics.intercepted(labels, tool, duration);
    }

    /// Judges a request. Waits for a person's decision, if a policy asks. Keeps the verdict as the
    /// context of the request.
    pub async fn judge_before(self: &Arc<Self>, caller: Arc<Caller>, before: Before) -> Ruled {
        if let Some(id) = &before.claims.request_id {
            // Whatever is decided now, the call with this id is no longer the earlier one.
            self.contexts.remove(caller.container.lease, id);
        }
        let found = match self.find_before(&caller, &before).await {
            Ok(found) => found,
            Err(denial) => {
                self.flow_before(&caller, &before, None).denied(&denial);
                return Ruled::refused(denial);
            }
        };
        let permits = self.begin(&caller.container);
        let judged = match permits {
            Ok(_permits) => self.judge_found(&caller, &before, found.as_ref()).await,
            Err(denial) => Err(Box::new(Refused {
                live: self.flow_before(&caller, &before, found.as_ref()),
                denial,
            })),
        };
        let label = found.as_ref().and_then(Found::label);
        let (mut live, verdict) = match judged {
            Ok(call) => (call.open.live, Ok(())),
            Err(refused) => {
                let Refused { live, denial } = *refused;
                (live, Err(denial))
            }
        };
        record_end(&mut live, &verdict);
        let metadata = live.flow.take_slot::<PolicyMetadata>().map(|one| one.0);
        self.keep_context(
            &caller.container,
            &before,
            found.as_ref(),
            &mut live,
            (&verdict, metadata.as_deref()),
        );
        let passed = Passed {
            modified: live.flow.take_slot::<RedactedArguments>().map(|one| one.0),
            is_approved: live.flow.find_slot::<Executing>().is_some(),
        };
        Ruled {
            verdict: verdict.map(|()| passed),
            metadata,
            label,
        }
    }

    async fn find_before(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        before: &Before,
    ) -> Result<Option<Found>, Denial> {
        match &before.tool {
            Some(tool) => self.find(caller, tool).await.map(Some),
            None => Ok(None),
        }
    }

    /// Has the chain judge a request, again after a person approved it: everything may have changed
    /// meanwhile.
    async fn judge_found(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        before: &Before,
        found: Option<&Found>,
    ) -> Result<JudgedCall, Box<Refused>> {
        let live = self.flow_before(caller, before, found);
        let mut refused = match self.judge_request(before, found, live).await {
            Ok(call) => return Ok(call),
            Err(refused) => refused,
        };
        let Some(question) = refused.live.flow.take_slot::<OpenQuestion>() else {
            return Err(refused);
        };
        let limit = (self.rules)().settings.waits.of(None);
        let container = Arc::clone(&caller.container);
        if let Err(denial) = Box::pin(hold(&container, question, &mut refused, limit, || ())).await
        {
            refused.denial = denial;
            return Err(refused);
        }
        let again = match self.find_before(caller, before).await {
            Ok(again) => again,
            Err(denial) => {
                refused.denial = denial;
                return Err(refused);
            }
        };
        let name = |found: Option<&Found>| found.map(Found::target);
        if name(again.as_ref()) != name(found) {
            return Err(refused);
        }
        let Refused { mut live, .. } = *refused;
        live.chain = (self.rules)().chain;
        self.judge_request(before, again.as_ref(), live).await
    }

    async fn judge_request(
        self: &Arc<Self>,
        before: &Before,
        found: Option<&Found>,
        live: LiveFlow,
    ) -> Result<JudgedCall, Box<Refused>> {
        let params = before.params.clone();
        let method = Arc::clone(&before.method);
        let direction = Direction::ToServer;
        let frame = match found {
            Some(found) => {
                let params = match found.params(params).await {
                    Ok(params) => params,
                    Err(denial) => return Err(Box::new(Refused { live, denial })),
                };
                Frame::request(direction, found.target(), method, Some(params))
                    .of_tool(Arc::clone(&found.definition))
            }
            None => {
                let target = McpTarget::Server(INTERCEPTOR.into());
                Frame::request(direction, target, method, params)
            }
        };
        JudgedCall::judge(live, frame).await
    }

    fn flow_before(&self, caller: &Caller, before: &Before, found: Option<&Found>) -> LiveFlow {
        let (claims, method) = (&before.claims, &before.method);
        let asked = (McpPhase::Before, claims);
        let mut live = self.flow_of(caller, asked, method, before.tool.as_ref(), found);
        live.flow.put_slot(Intercept {
            tool_id: claims.tool_id.clone(),
            agent_id: claims.agent_id.clone(),
            session: claims.session.clone(),
            traceparent: claims.traceparent.clone(),
            ..Intercept::default()
        });
        live
    }

    /// Begins the flow of a question. A tool that was not found is recorded by its name.
    pub(super) fn flow_of(
        &self,
        caller: &Caller,
        (phase, claims): (McpPhase, &Claims),
        method: &Arc<str>,
        tool: Option<&Tool>,
        found: Option<&Found>,
    ) -> LiveFlow {
        let chain = (self.rules)().chain;
        let (server, name) = match (found, tool) {
            (Some(found), _) => {
                let name = Arc::clone(&found.definition.name);
                (Arc::clone(&found.server), Some(name))
            }
            (None, Some(Tool::OfClaudeCode(name))) => (CLAUDE_CODE.into(), Some((&**name).into())),
            (None, Some(Tool::Named(name))) => (INTERCEPTOR.into(), Some((&**name).into())),
            (None, None) => (INTERCEPTOR.into(), None),
        };
        let mut live = self.flow(&chain, caller, method, Some(&server), name.as_ref());
        let record = live.flow.mcp_record();
        record.agent_id.clone_from(&claims.agent_id);
        record.request_id.clone_from(&claims.request_id);
        record.phase = Some(phase);
        live
    }

    /// Keeps what `before` decided, for the call at the gateway and for `after`.
    fn keep_context(
        &self,
        container: &Arc<Container>,
        before: &Before,
        found: Option<&Found>,
        live: &mut LiveFlow,
        (verdict, metadata): (&Result<(), Denial>, Option<&RawValue>),
    ) {
        let Some(id) = &before.claims.request_id else {
            return;
        };
        let record = live.flow.record();
        let approval = record.approval.as_ref().and_then(|one| one.id.clone());
        let mcp = record.mcp.as_ref();
        let decision = mcp.and_then(|mcp| mcp.decision);
        let reason = mcp.and_then(|mcp| mcp.reason.clone());
        let args = mcp.and_then(|mcp| mcp.args_sha256.clone());
        let executing = live.flow.find_slot::<Executing>().cloned();
        let executing = executing.filter(|_| verdict.is_ok());
        let denied = verdict.as_ref().err().map(|denial| {
            let sentence = denial.sentence();
            let end = sentence.floor_char_boundary(MAX_REASON);
            sentence.get(..end).unwrap_or_default().into()
        });
        let handover = found.zip(args).zip(executing.clone());
        let handover = handover.map(|((found, args), executing)| {
            let tool = (
                Arc::clone(&found.server),
                Arc::clone(&found.definition.name),
            );
            Arc::new(Handover::new(tool, args, approval, executing))
        });
        let decision = match verdict {
            Ok(()) => decision.unwrap_or(Effect::Allow),
            Err(_) => decision.map_or(Effect::DenyContinue, |one| one.max(Effect::DenyContinue)),
        };
        let mut context = RequestContext::new(id.clone(), Arc::clone(&before.method));
        context.agent_id.clone_from(&before.claims.agent_id);
        context.tool.clone_from(&before.tool);
        context.tool_id.clone_from(&before.claims.tool_id);
        context.target = found.map(Found::target);
        let params = before.params.as_deref();
        let short = params.filter(|params| params.get().len() <= MAX_PARAMS);
        context.params = match (found, short) {
            (Some(found), Some(params)) => found.renamed(params).ok(),
            (_, params) => params.map(ToOwned::to_owned),
        };
        context.is_denied = verdict.is_err();
        context.decision = Some(decision);
        context.reason = reason.or(denied);
        context.metadata = metadata.map(ToOwned::to_owned);
        context.handover = handover;
        context.executing = executing;
        context.traceparent = live.flow.take_slot::<SpanParent>().map(|one| one.0);
        let limits = &(self.rules)().settings.context;
        self.contexts.keep(container, context, limits);
    }
}
