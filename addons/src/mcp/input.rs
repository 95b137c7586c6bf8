//! The input of a policy.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::TOOLS_CALL;
use super::call::{arguments, with_arguments};
use super::denials::Target;
use crate::contract::{
    Annotations, Container, Denial, Direction, Effect, Flow, Intercept, McpSession, PolicyInput,
    RpcError, RpcOutcome,
};
use crate::json::{Members, ObjectText};

/// One message as the input of a policy.
pub(super) struct EvaluatedMessage<'m> {
    pub(super) target: &'m Target,
    pub(super) container: &'m Arc<Container>,
    pub(super) direction: Direction,
    pub(super) method: &'m str,
    /// The params of the request, also if its response is judged.
    pub(super) params: Option<&'m RawValue>,
    /// The effective hints of the tool; `None` for a message that belongs to no tool.
    pub(super) annotations: Option<Annotations>,
    /// The response, and the decision of the policies on its request, if they made one. `None` if
    /// a request is judged.
    pub(super) response: Option<(&'m RpcOutcome, Option<Effect>)>,
}

impl EvaluatedMessage<'_> {
    /// Builds the input document. `redacted` replaces the
    /// arguments of a tool call, the params of another request, or the result or error of a
    /// response. Denies malformed params.
    pub(super) fn input(
        &self,
        flow: &Flow,
        redacted: Option<&RawValue>,
    ) -> Result<PolicyInput, Denial> {
        let params = self.params(redacted)?;
        let mut input = PolicyInput::default();
        if let Some((outcome, before)) = self.response {
            input.text("phase", "response");
            match outcome {
                Ok(result) => input.json("result", redacted.unwrap_or(result).get()),
                Err(error) => {
                    let error = redacted.map_or_else(|| error_json(error), ToString::to_string);
                    input.json("error", &error);
                }
            }
            input.text_or_null("decision_before", before.map(Effect::as_str));
        } else {
            input.text("phase", "request");
        }
        let direction = match self.direction {
            Direction::ToServer => "to_server",
            Direction::ToClient => "to_client",
        };
        input.text("direction", direction);
        input.text("method", self.method);
        input.json("params", params.as_deref().map_or("null", RawValue::get));
        let intercept = flow.find_slot::<Intercept>();
        let is_unattributed = intercept.is_some_and(|one| one.is_unattributed);
        let name = self.target.name();
        let container = self.container.id.as_str();
        let [known_name, known_server, known_container] = [&*name, &*self.target.server, container]
            .map(|text| Some(text).filter(|_| !is_unattributed));
        input.text_or_null("name", known_name);
        input.text_or_null("server", known_server);
        input.text_or_null("tool", self.target.tool.as_deref());
        let members = params
            .as_deref()
            .and_then(|params| Members::read(params).ok());
        input.json("arguments", members.as_ref().map_or("{}", arguments));
        let claimed = |read: fn(&Intercept) -> Option<&str>| intercept.and_then(read);
        let tool_id = claimed(|one| one.tool_id.as_deref());
        input.text_or_null("tool_id", tool_id.or(known_name));
        let agent_id = claimed(|one| one.agent_id.as_deref());
        input.text_or_null("agent_id", agent_id.or(known_container));
        input.text("container", container);
        let session = flow.find_slot::<McpSession>().map(|session| &*session.0);
        let session = session.or(claimed(|one| one.session.as_deref()));
        input.text_or_null("session", session);
        if let Some(context) = claimed(|one| one.context.as_deref()) {
            input.json("context", context);
        }
        input.text("security_level", self.container.level().as_str());
        input.json("annotations", &self.annotations_json());
        Ok(input)
    }

    /// The params of the request. If the request is judged, `redacted` replaces the params, or for
    /// a tool call only the arguments.
    fn params(&self, redacted: Option<&RawValue>) -> Result<Option<Cow<'_, RawValue>>, Denial> {
        let (Some(redacted), None) = (redacted, self.response) else {
            return Ok(self.params.map(Cow::Borrowed));
        };
        let replaced = match (self.params, self.direction) {
            (Some(params), Direction::ToServer) if self.method == TOOLS_CALL => {
                let params = Members::read(params).map_err(Denial::malformed)?;
                with_arguments(&params, redacted.get())?
            }
            _ => redacted.to_owned(),
        };
        Ok(Some(Cow::Owned(replaced)))
    }

    fn annotations_json(&self) -> String {
        let Some(hints) = self.annotations else {
            return "null".to_owned();
        };
        let mut object = ObjectText::default();
        object.member("readOnlyHint", boolean(hints.is_read_only()));
        object.member("destructiveHint", boolean(hints.is_destructive()));
        object.member("idempotentHint", boolean(hints.is_idempotent()));
        object.member("openWorldHint", boolean(hints.is_open_world()));
        object.end()
    }
}

const fn boolean(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn error_json(error: &RpcError) -> String {
    let mut object = ObjectText::default();
    object.member("code", &error.code.to_string());
    object.text("message", &error.message);
    if let Some(data) = &error.data {
        object.member("data", data.get());
    }
    object.end()
}
