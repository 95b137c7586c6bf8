//! The input of a policy.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::call::arguments;
use super::denials::Target;
use crate::contract::{Annotations, Container, Direction, Flow, McpSession, RpcError, RpcOutcome};
use crate::raw_json::{Members, ObjectText};

/// One message as the input of a policy.
pub(super) struct Question<'q> {
    pub(super) target: &'q Target,
    pub(super) container: &'q Arc<Container>,
    pub(super) direction: Direction,
    pub(super) method: &'q str,
    /// Params of the request, also when the response is judged.
    pub(super) params: Option<&'q RawValue>,
    /// The hints of a tool.
    pub(super) annotations: Option<Annotations>,
    /// The response, and the decision on the request.
    pub(super) response: Option<(&'q RpcOutcome, Option<&'static str>)>,
}

impl Question<'_> {
    /// The input as a JSON object.
    pub(super) fn to_json(&self, flow: &Flow) -> String {
        let mut input = ObjectText::default();
        let phase = match self.response {
            None => "request",
            Some(_) => "response",
        };
        input.text("phase", phase);
        match self.response {
            Some((Ok(result), _)) => input.member("result", result.get()),
            Some((Err(error), _)) => input.member("error", &error_json(error)),
            None => {}
        }
        if let Some((_, before)) = self.response {
            input.text_or_null("decision_before", before);
        }
        input.text(
            "direction",
            match self.direction {
                Direction::ToServer => "to_server",
                Direction::ToClient => "to_client",
            },
        );
        input.text("method", self.method);
        input.member("params", self.params.map_or("null", RawValue::get));
        let name = self.target.name();
        input.text("name", &name);
        input.text("server", &self.target.server);
        input.text_or_null("tool", self.target.tool.as_deref());
        input.member("arguments", self.arguments());
        input.text("tool_id", &name);
        let container = self.container.id.as_str();
        input.text("agent_id", container);
        input.text("container", container);
        let session = flow.find_slot::<McpSession>();
        input.text_or_null("session", session.map(|session| &*session.0));
        input.text("security_level", self.container.level().as_str());
        input.member("annotations", &self.annotations_json());
        input.end()
    }

    fn arguments(&self) -> &str {
        let members = self.params.and_then(|params| Members::read(params).ok());
        members.map_or("{}", |members| arguments(&members))
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
