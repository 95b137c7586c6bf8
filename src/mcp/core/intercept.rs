//! Judges tool calls about which another gateway or an agent's hook asks, and their results.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    CLAUDE_CODE, Container, Denial, Direction, Effect, Executing, Frame, Handover, INTERCEPTOR,
    Intercept, LiveFlow, McpTarget, PolicyMetadata, RedactedArguments, SpanParent,
};
use addons::mcp::OpenQuestion;
use serde_json::value::{RawValue, to_raw_value};

use super::super::contexts::{NoContext, RequestContext, Tool};
use super::intercepted_tool::Found;
use super::judged_call::{JudgedCall, Refused};
use super::people::hold;
use super::results::into_outcome;
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
    pub caller: Arc<Caller>,
    pub claims: Claims,
    pub method: Arc<str>,
    /// The tool that the request calls; `None` for a method other than `tools/call`.
    pub tool: Option<Tool>,
    pub params: Option<Box<RawValue>>,
}

/// A question about a response: may the agent see it?
pub struct After {
    pub caller: Arc<Caller>,
    pub claims: Claims,
    /// The tool; `None` if the caller does not know it, and no context names it.
    pub tool: Option<Tool>,
    pub outcome: Outcome,
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
    fn refused(denial: Denial) -> Self {
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
    pub async fn judge_before(self: &Arc<Self>, before: Before) -> Ruled {
        let found = match self.find_before(&before).await {
            Ok(found) => found,
            Err(denial) => {
                self.flow_before(&before, None).denied(&denial);
                return Ruled::refused(denial);
            }
        };
        let permits = self.begin(&before.caller.container);
        let judged = match permits {
            Ok(_permits) => self.judge_found(&before, found.as_ref()).await,
            Err(denial) => Err(Box::new(Refused {
                live: self.flow_before(&before, found.as_ref()),
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

    async fn find_before(self: &Arc<Self>, before: &Before) -> Result<Option<Found>, Denial> {
        match &before.tool {
            Some(tool) => self.find(&before.caller, tool).await.map(Some),
            None => Ok(None),
        }
    }

    /// Has the chain judge a request, again after a person approved it: everything may have changed
    /// meanwhile.
    async fn judge_found(
        self: &Arc<Self>,
        before: &Before,
        found: Option<&Found>,
    ) -> Result<JudgedCall, Box<Refused>> {
        let live = self.flow_before(before, found);
        let mut refused = match self.judge_request(before, found, live).await {
            Ok(call) => return Ok(call),
            Err(refused) => refused,
        };
        let Some(question) = refused.live.flow.take_slot::<OpenQuestion>() else {
            return Err(refused);
        };
        let limit = (self.rules)().settings.waits.of(None);
        let container = Arc::clone(&before.caller.container);
        if let Err(denial) = Box::pin(hold(&container, question, &mut refused, limit, || ())).await
        {
            refused.denial = denial;
            return Err(refused);
        }
        let again = match self.find_before(before).await {
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
                let Some(params) = found.params(params.as_deref()) else {
                    let denial = Denial::malformed("the params are not an object");
                    return Err(Box::new(Refused { live, denial }));
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

    /// Judges a response, with the context of its request, which ends with it.
    pub async fn judge_after(self: &Arc<Self>, after: After) -> Ruled {
        let container = &after.caller.container;
        let ttl = (self.rules)().settings.context.ttl;
        let id = after.claims.request_id.as_deref();
        let taken = id.map(|id| (id, self.contexts.take(container.lease, id, ttl)));
        let context = match taken {
            Some((_, Ok(context))) => Some(context),
            Some((id, Err(NoContext::Unknown))) => {
                let mut made = RequestContext::new(id.into());
                made.agent_id.clone_from(&after.claims.agent_id);
                Some(Arc::new(made))
            }
            Some((_, Err(NoContext::Expired))) => {
                let sentence =
                    "the context of this request_id has expired: context.ttl in mcp.yaml";
                return self.refuse_after(&after, Denial::malformed(sentence));
            }
            None => None,
        };
        if let Some(context) = &context {
            context.ended(None);
        }
        let of_context = context.as_ref().and_then(|context| context.tool.clone());
        let tool = after.tool.clone().or(of_context);
        let found = match &tool {
            Some(tool) => match self.find(&after.caller, tool).await {
                Ok(found) => Some(found),
                Err(denial) => return self.refuse_after(&after, denial),
            },
            None => None,
        };
        let mut live = self.flow_after(&after, found.as_ref());
        let intercept = Intercept {
            tool_id: after.claims.tool_id.clone(),
            agent_id: after.claims.agent_id.clone(),
            session: after.claims.session.clone(),
            context: context.as_ref().map(|context| context.to_json().into()),
            decision_before: context.as_ref().and_then(|context| context.decision),
            traceparent: after.claims.traceparent.clone().or_else(|| {
                let context = context.as_ref()?;
                context.traceparent.clone()
            }),
            is_unattributed: found.is_none(),
            ..Intercept::default()
        };
        live.flow.put_slot(intercept);
        if let Some(executing) = context.as_ref().and_then(|one| one.executing.clone()) {
            live.flow.put_slot(executing);
        }
        let label = found.as_ref().and_then(Found::label);
        let judged = self.judge_outcome(after, found, &mut live).await;
        record_end(&mut live, &judged);
        Ruled {
            verdict: judged,
            metadata: live.flow.take_slot::<PolicyMetadata>().map(|one| one.0),
            label,
        }
    }

    async fn judge_outcome(
        &self,
        after: After,
        found: Option<Found>,
        live: &mut LiveFlow,
    ) -> Result<Passed, Denial> {
        let _permits = self.begin(&after.caller.container)?;
        let target = match &found {
            Some(found) => found.target(),
            None => McpTarget::Server(INTERCEPTOR.into()),
        };
        let mut frame = Frame::response(Direction::ToServer, target, "tools/call", after.outcome);
        frame.definition = found.map(|found| found.definition);
        let chain = Arc::clone(&live.chain);
        chain.mcp_report(&mut live.flow, &mut frame).await?;
        let record = live.flow.record().mcp.as_ref();
        let is_redacted = record.and_then(|record| record.decision) == Some(Effect::Redact);
        let modified = match into_outcome(frame)? {
            Ok(result) => Some(result),
            Err(error) => to_raw_value(&error).ok(),
        };
        Ok(Passed {
            modified: modified.filter(|_| is_redacted),
            is_approved: false,
        })
    }

    fn refuse_after(&self, after: &After, denial: Denial) -> Ruled {
        self.flow_after(after, None).denied(&denial);
        Ruled::refused(denial)
    }

    fn flow_before(&self, before: &Before, found: Option<&Found>) -> LiveFlow {
        let claims = &before.claims;
        let mut live = self.flow_of(&before.caller, &before.method, before.tool.as_ref(), found);
        live.flow.mcp_record().agent_id.clone_from(&claims.agent_id);
        live.flow.put_slot(Intercept {
            tool_id: claims.tool_id.clone(),
            agent_id: claims.agent_id.clone(),
            session: claims.session.clone(),
            traceparent: claims.traceparent.clone(),
            ..Intercept::default()
        });
        live
    }

    fn flow_after(&self, after: &After, found: Option<&Found>) -> LiveFlow {
        let method = "tools/call".into();
        let mut live = self.flow_of(&after.caller, &method, after.tool.as_ref(), found);
        let agent_id = &after.claims.agent_id;
        live.flow.mcp_record().agent_id.clone_from(agent_id);
        live
    }

    /// Begins the flow of a question. A tool that was not found is recorded by its name.
    fn flow_of(
        &self,
        caller: &Caller,
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
        self.flow(&chain, caller, method, Some(&server), name.as_ref())
    }

    /// Keeps what `before` decided, for the call at the gateway and for `after`.
    fn keep_context(
        &self,
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
        let mut context = RequestContext::new(id.clone());
        context.agent_id.clone_from(&before.claims.agent_id);
        context.tool.clone_from(&before.tool);
        context.decision = Some(decision);
        context.reason = reason.or(denied);
        context.metadata = metadata.map(ToOwned::to_owned);
        context.handover = handover;
        context.executing = executing;
        context.traceparent = live.flow.take_slot::<SpanParent>().map(|one| one.0);
        let container = &before.caller.container;
        let limits = &(self.rules)().settings.context;
        self.contexts.keep(container, context, limits);
    }
}
