//! Questions to the client that a result of the newer era carries.

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
    /// Judges the questions to the client that a result of the newer era carries, as the older
    /// one's requests are judged.
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
            // It carries no questions.
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
            let entry = Members::parse(request).map_err(Denial::malformed)?;
            let method = entry.text("method");
            let method =
                method.ok_or_else(|| Denial::malformed("an input request has no method"))?;
            let params = entry
                .get("params")
                .map(|json| RawValue::from_string(json.to_owned()));
            let params = params.transpose().map_err(Denial::malformed)?;
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
            match asked.modified {
                None => judged.member(key, request),
                Some(modified) => {
                    changed = true;
                    judged.member(key, &entry.with("params", modified.get()));
                }
            }
        }
        if changed {
            let replaced = members.with("inputRequests", &judged.end());
            *result = RawValue::from_string(replaced).map_err(Denial::malformed)?;
        }
        Ok(())
    }
}
