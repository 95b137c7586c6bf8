//! Judges the MCP messages between clients and servers before they are relayed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::call::{self, PreparedCall, READ_IN_PLACE, ToolCall};
use super::changed::changed;
use super::client_text::carries_text;
use super::definition::is_blocked;
use super::denials::{Target, unknown_server, unknown_tool};
use super::gateway::check_own;
use super::input::EvaluatedMessage;
use super::intercepted::{give_back, is_built_in, take_over};
use super::level;
use super::people::{Approved, Asking, still_denied};
use super::policies::{check_latch, redact_outcome};
use super::reserved::refuse_reserved_error;
use super::ruling::record;
use super::settings::ServerSettings;
use super::{Mcp, TOOLS_CALL};
use crate::contract::{
    Code, Container, Definition, Denial, Direction, Effect, Flow, Frame, FrameBody, FrameKind,
    Intercept, Level, RedactedArguments, RedactedOutcome, Standing, Verdict,
};
use crate::json::Members;

/// A step may take this time in addition to the time limit of one evaluation of the policies, for
/// up to three writes to disk that take 5 s each. The chain denies a message whose step takes
/// longer. A person's decision is awaited between two steps.
pub(super) const STEP_MARGIN: Duration = Duration::from_secs(20);

impl Mcp {
    pub(super) async fn judge_request(&self, flow: &mut Flow, frame: &mut Frame) -> Verdict {
        let container = Arc::clone(flow.container()?);
        let Some(target) = Target::of(&frame.target) else {
            return check_own(frame);
        };
        let server = self.server(&target.server);
        let is_mounted = server.is_some_and(|server| server.is_for(&container.id));
        if !is_mounted && !is_built_in(flow, &target.server) {
            return Err(unknown_server(&target.server));
        }
        if !is_mounted {
            check_latch(flow, &container, &target)?;
        }
        if &*frame.method == TOOLS_CALL && frame.direction == Direction::ToServer {
            return self.judge_call(flow, frame, &container, target).await;
        }
        let is_text = frame.direction == Direction::ToServer && carries_text(frame);
        if is_text {
            self.admit_text(flow, frame, &container, &target)?;
        }
        if let Some(modified) = self
            .apply_policies(flow, frame, (&container, &target), None)
            .await?
        {
            frame.body = FrameBody::Params(Some(modified));
        }
        let before = container.standing();
        if is_text {
            // While the policies decided, another message may have raised the level or set
            // the latch.
            self.admit_text(flow, frame, &container, &target)?;
        }
        let settings = &self.settings;
        let level = settings.classification(&target.server, &container.id, frame);
        // A tool's messages to the client are as confidential as its result. For a request, the
        // level rises before it is sent, as for a call.
        self.raise_level(flow, &container, level).await?;
        if frame.direction == Direction::ToServer && level > Level::Public {
            flow.put_slot(Requested(level));
        }
        // Checked again, as for a call: the rise that the request itself causes does not deny it.
        let level = before.level.max(level);
        let expected = Standing { level, ..before };
        match is_text && container.standing().and(expected) != expected {
            true => self.admit_text(flow, frame, &container, &target),
            false => Ok(()),
        }
    }

    async fn judge_call(
        &self,
        flow: &mut Flow,
        frame: &mut Frame,
        container: &Arc<Container>,
        target: Target,
    ) -> Verdict {
        let approved = flow.find_slot::<Approved>();
        let approval = approved.map(|approved| approved.approval);
        let judged = self.judge_prepared(flow, frame, container, target).await;
        if judged.is_err() {
            give_back(flow);
        }
        judged.map_err(|denial| match approval {
            Some(approval) => still_denied(denial, approval),
            None => denial,
        })
    }

    async fn judge_prepared(
        &self,
        flow: &mut Flow,
        frame: &mut Frame,
        container: &Arc<Container>,
        target: Target,
    ) -> Verdict {
        let call = self.tool_call(frame, container, target)?;
        let prepared = self.prepare(frame, &call).await?;
        take_over(flow, &call, &prepared.args_sha256);
        flow.mcp_record().args_sha256 = Some(prepared.args_sha256.into());
        let written = prepared.replaced;
        frame.body = FrameBody::Params(Some(prepared.params));
        check_latch(flow, container, &call.target)?;
        if is_blocked(&self.settings, &call.definition) {
            return Err(Box::pin(self.deny_changed(flow, &call)).await);
        }
        self.admit(flow, &call)?;
        let asking = written.as_deref().or(frame.params()).map(|params| Asking {
            call: &call,
            params,
        });
        let modified = self
            .apply_policies(flow, frame, (container, &call.target), asking.as_ref())
            .await?;
        if let Some(modified) = &modified
            && flow.find_slot::<Intercept>().is_some()
        {
            let own = call::without_set_fields(modified, &call.definition, call.rule.as_deref())?;
            flow.put_slot(RedactedArguments(own));
        }
        if let (Some(modified), Some(params)) = (modified, frame.params()) {
            let params = Members::read(params).map_err(Denial::malformed)?;
            let params = call::with_arguments(&params, modified.get())?;
            frame.body = FrameBody::Params(Some(params));
        }
        if let (Some(Effect::Ask), Some(params)) = (flow.mcp_record().decision, frame.params()) {
            let params = call::without_unknown_meta(params)?;
            frame.body = FrameBody::Params(Some(params));
        }
        // Checked again, since another message may have raised the level or set the abort latch
        // while the policies decided.
        let before = container.level();
        self.admit(flow, &call)?;
        // The level rises before the call runs, since the tool's log messages and requests are as
        // confidential as its result, and may arrive outside the call.
        let (settings, server) = (&self.settings, &call.target.server);
        let level = settings.classification(server, &container.id, frame);
        self.raise_level(flow, container, level).await?;
        // Last, so that nothing but a crash or a change in between wastes a grant.
        self.use_grant(flow, container, level).await?;
        // Checked again, since another message may have set the latch or raised the level during
        // the writes. A rise up to the tool's classification does not deny the call, since the call
        // itself causes that rise.
        check_latch(flow, container, &call.target)?;
        if container.level() > before.max(level) {
            self.admit(flow, &call)?;
        }
        flow.put_slot(CalledTool(call.definition));
        Ok(())
    }

    /// Finds the called tool and its override. Denies a call without an id, and a call of an
    /// unknown tool.
    fn tool_call<'c>(
        &self,
        frame: &Frame,
        container: &'c Arc<Container>,
        target: Target,
    ) -> Result<ToolCall<'c>, Denial> {
        if frame.kind != FrameKind::Request {
            return Err(Denial::malformed("a tool call has no id"));
        }
        let definition = frame.definition.clone();
        let named = definition.filter(|definition| target.tool.as_ref() == Some(&definition.name));
        let unknown = || unknown_tool(target.tool.as_deref().unwrap_or_default());
        let definition = named.ok_or_else(unknown)?;
        Ok(self.call_of(container, target, definition))
    }

    fn call_of<'c>(
        &self,
        container: &'c Arc<Container>,
        target: Target,
        definition: Arc<Definition>,
    ) -> ToolCall<'c> {
        let settings = &self.settings;
        let rule = settings.override_of(&target.server, &definition.name, &container.id);
        ToolCall {
            container,
            rule: rule.cloned(),
            target,
            definition,
        }
    }

    /// Reads the params and applies the override; on a blocking thread for large params.
    async fn prepare(
        &self,
        frame: &mut Frame,
        call: &ToolCall<'_>,
    ) -> Result<PreparedCall, Denial> {
        let FrameBody::Params(params) = &mut frame.body else {
            return Err(Denial::malformed("a tool call has no params"));
        };
        let params = params.take();
        let length = params.as_ref().map_or(0, |params| params.get().len());
        if length <= READ_IN_PLACE {
            return call::prepare(params, &call.definition, call.rule.as_ref());
        }
        let (definition, rule) = (Arc::clone(&call.definition), call.rule.clone());
        let work = move || call::prepare(params, &definition, rule.as_ref());
        let prepared = self.ports.tasks.run_blocking(work).await;
        prepared.unwrap_or_else(|_panicked| Err(Denial::panicked()))
    }

    /// Denies a call, or a client's answer during the call, in each of these cases:
    /// - The container's abort latch is set.
    /// - The tool is blocked because its definition changed.
    /// - The tool reaches the open world, and the container's security level excludes it.
    fn admit(&self, flow: &mut Flow, call: &ToolCall<'_>) -> Verdict {
        let (target, definition) = (&call.target, &*call.definition);
        check_latch(flow, call.container, target)?;
        if is_blocked(&self.settings, definition) {
            return Err(changed(flow, target, definition));
        }
        let server = self.server(&target.server);
        if level::denies(call.container, server, call.rule.as_deref(), definition) {
            let level = call.container.level().as_str();
            let reason = format!(
                "the tool reaches the open world, and the container's security level is {level}"
            );
            record(flow, Effect::DenyContinue, &reason);
            let hint = match definition.annotations.open_world {
                // The server's stricter hint takes precedence over an override.
                Some(true) => format!(
                    "the server says openWorldHint: true; unified-proxy container reset {} lowers the level",
                    call.container.id
                ),
                _ => "set annotations: { openWorldHint: false } under overrides in mcp.yaml if the tool does not reach the open world".to_owned(),
            };
            return Err(target.deny(&reason).rule("security level").hint(hint));
        }
        flow.note(|| {
            format!(
                "{} may be called at the container's security level",
                target.name()
            )
        });
        Ok(())
    }

    pub(super) async fn judge_response(&self, flow: &mut Flow, frame: &mut Frame) -> Verdict {
        let container = Arc::clone(flow.container()?);
        let Some(target) = Target::of(&frame.target) else {
            return Ok(());
        };
        if frame.direction == Direction::ToServer {
            refuse_reserved_error(frame, &target)?;
            self.flag(flow, frame, &target.server).await?;
            let intercept = flow.find_slot::<Intercept>();
            let is_unattributed = intercept.is_some_and(|one| one.is_unattributed);
            if &*frame.method == TOOLS_CALL && frame.definition.is_none() && !is_unattributed {
                // The classification of the result depends on the definition.
                let called = flow.take_slot::<CalledTool>();
                let CalledTool(definition) = called.ok_or_else(Denial::internal)?;
                frame.definition = Some(definition);
            }
        }
        if let Some(modified) = self
            .apply_policies(flow, frame, (&container, &target), None)
            .await?
        {
            redact_outcome(frame, modified, &target)?;
            if flow.find_slot::<Intercept>().is_some() {
                flow.put_slot(RedactedOutcome);
            }
        }
        match frame.direction {
            Direction::ToServer => {
                self.judge_input(flow, frame, &container, &target).await?;
                let settings = &self.settings;
                let of_tool = settings.classification(&target.server, &container.id, frame);
                let requested = flow.take_slot::<Requested>();
                let level = requested.map_or(of_tool, |requested| requested.0.max(of_tool));
                self.raise_level(flow, &container, level).await
            }
            Direction::ToClient => self.admit_answer(flow, frame, &container, target),
        }
    }

    /// Judges a client's answer to a server's input request. An answer during a tool call is denied
    /// if the call would now be denied. Any other answer is judged like a request of the client.
    fn admit_answer(
        &self,
        flow: &mut Flow,
        frame: &Frame,
        container: &Arc<Container>,
        target: Target,
    ) -> Verdict {
        let Some(definition) = frame.definition.clone() else {
            return self.admit_text(flow, frame, container, &target);
        };
        let target = Target {
            tool: Some(Arc::clone(&definition.name)),
            ..target
        };
        self.admit(flow, &self.call_of(container, target, definition))
    }

    /// Evaluates the policies for a frame, if any covers its method. Returns the replacement as
    /// [`enforce`](Self::enforce) does.
    async fn apply_policies(
        &self,
        flow: &mut Flow,
        frame: &Frame,
        (container, target): (&Arc<Container>, &Target),
        asking: Option<&Asking<'_>>,
    ) -> Result<Option<Box<RawValue>>, Denial> {
        if !self.ports.evaluator.covers(&frame.method) {
            flow.note(|| format!("no policy covers {}", frame.method));
            return Ok(None);
        }
        let intercept = flow.find_slot::<Intercept>();
        let intercepted = intercept.and_then(|one| one.decision_before);
        let reported = intercept.and_then(|one| one.params.clone());
        let record = flow.record().mcp.as_ref();
        let before = record.and_then(|mcp| mcp.decision).or(intercepted);
        let definition = frame.definition.as_deref();
        let hints = |tool| self.settings.hints(&target.server, &container.id, tool);
        let annotations = definition.map(hints);
        let request = flow.take_slot::<JudgedParams>();
        let (params, response) = match &frame.body {
            FrameBody::Params(params) => (params.as_deref(), None),
            FrameBody::Outcome(outcome) => {
                let params = request.as_ref().and_then(|request| request.0.as_deref());
                (params.or(reported.as_deref()), Some((outcome, before)))
            }
        };
        let message = EvaluatedMessage {
            target,
            container,
            direction: frame.direction,
            method: &frame.method,
            params,
            annotations,
            response,
        };
        let modified = self.enforce(flow, message, asking).await?;
        if let FrameBody::Params(params) = &frame.body {
            flow.put_slot(JudgedParams(params.clone()));
        }
        Ok(modified)
    }

    fn server(&self, name: &Arc<str>) -> Option<&ServerSettings> {
        self.settings.servers.get(name).map(|server| &**server)
    }

    /// Raises the container's level to the classification of a message's data. The level is on disk
    /// before the message passes. If the level cannot be written, the message is denied.
    async fn raise_level(
        &self,
        flow: &mut Flow,
        container: &Arc<Container>,
        level: Level,
    ) -> Verdict {
        if !level::must_be_stored(container, level) {
            return Ok(());
        }
        let text = level.as_str();
        flow.note(|| format!("the classification of the data raises the security level to {text}"));
        let ports = &self.ports;
        let raised = flow.effect(|| level::raise(container, level, &ports.records, &ports.tasks));
        let Some(raised) = raised else { return Ok(()) };
        raised.await.map_err(|_unavailable| {
            Denial::new(Code::RegistryUnavailable, "Registry unavailable").rule("security level")
        })
    }
}

/// The params that the policies judged in a request. They are also part of the input for its
/// response.
struct JudgedParams(Option<Box<RawValue>>);

/// The classification of the data that the flow's request asked for, other than a tool's result.
struct Requested(Level);

/// The tool that the flow's request called.
struct CalledTool(Arc<Definition>);
