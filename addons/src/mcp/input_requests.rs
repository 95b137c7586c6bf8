//! `inputRequests`: questions to the client in a result, since 2026-07-28.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Mcp;
use super::denials::Target;
use super::input::Question;
use crate::contract::{Container, Denial, Direction, Flow, Frame, FrameBody, Verdict};
use crate::raw_json::{Members, ObjectText, RawJsonError};

/// Methods that a server asks a client with, in either era.
const ASKED_OF_CLIENTS: [&str; 3] = ["elicitation/create", "sampling/createMessage", "roots/list"];

impl Mcp {
    /// Judges the questions in a result as requests of servers are judged in older revisions.
    pub(super) async fn judge_input_requests(
        &self,
        flow: &mut Flow,
        frame: &mut Frame,
        container: &Arc<Container>,
        target: &Target,
    ) -> Verdict {
        let FrameBody::Outcome(Ok(result)) = &mut frame.body else {
            return Ok(());
        };
        let evaluator = &self.ports.evaluator;
        if !ASKED_OF_CLIENTS.iter().any(|method| evaluator.asks(method)) {
            return Ok(());
        }
        let members = match Members::read(result) {
            Ok(members) => members,
            // A result that is no object has no questions.
            Err(RawJsonError::NotAnObject) => return Ok(()),
            Err(error) => return Err(Denial::malformed(error)),
        };
        let requests = members.get("inputRequests").filter(|json| *json != "null");
        let Some(requests) = requests else {
            return Ok(());
        };
        let requests = Members::parse(requests).map_err(Denial::malformed)?;
        let mut judged = ObjectText::default();
        let mut changed = false;
        for (key, request) in requests.iter() {
            let modified = self.judge_input_request(flow, request, container, target);
            let modified = modified.await?;
            changed |= modified.is_some();
            judged.member(key, modified.as_deref().unwrap_or(request));
        }
        if changed {
            let replaced = members.with("inputRequests", &judged.end());
            *result = RawValue::from_string(replaced).map_err(Denial::malformed)?;
        }
        Ok(())
    }

    /// The text that replaces one question; `None` where it passes as it is.
    async fn judge_input_request(
        &self,
        flow: &mut Flow,
        request: &str,
        container: &Arc<Container>,
        target: &Target,
    ) -> Result<Option<String>, Denial> {
        let entry = Members::parse(request).map_err(Denial::malformed)?;
        let method = entry.text("method");
        let method = method.ok_or_else(|| Denial::malformed("an input request has no method"))?;
        let params = entry.get("params").map(ToOwned::to_owned);
        let params = params.map(RawValue::from_string).transpose();
        let params = params.map_err(Denial::malformed)?;
        let question = Question {
            target,
            container,
            direction: Direction::ToClient,
            method: &method,
            params: params.as_deref(),
            annotations: None,
            response: None,
        };
        let asked = self.ask_about(flow, question, None).await?;
        Ok(asked
            .modified
            .map(|modified| entry.with("params", modified.get())))
    }
}
