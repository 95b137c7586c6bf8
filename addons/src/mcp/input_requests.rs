//! Judges questions to the client in the answer to a request: `inputRequests` of a result
//! (2026-07-28), and `elicitations` of the error `URLElicitationRequired` (2025-11-25).

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Mcp;
use super::denials::Target;
use super::input::Question;
use crate::contract::{Container, Denial, Direction, Flow, Frame, FrameBody, RpcError, Verdict};
use crate::raw_json::{Members, ObjectText, RawJsonError};

/// Methods of requests that servers send to clients, in all protocol revisions.
const ASKED_OF_CLIENTS: [&str; 3] = [ELICITATION, "sampling/createMessage", "roots/list"];
const ELICITATION: &str = "elicitation/create";

impl Mcp {
    /// Judges each question in an answer as if the server had sent it as a request.
    pub(super) async fn judge_questions(
        &self,
        flow: &mut Flow,
        frame: &mut Frame,
        container: &Arc<Container>,
        target: &Target,
    ) -> Verdict {
        match &mut frame.body {
            FrameBody::Outcome(Ok(result)) => {
                self.judge_input_requests(flow, result, container, target)
                    .await
            }
            FrameBody::Outcome(Err(error)) if error.code == RpcError::URL_ELICITATION_REQUIRED => {
                match &mut error.data {
                    Some(data) => self.judge_elicitations(flow, data, container, target).await,
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Judges each element of `elicitations` as the params of an `elicitation/create`.
    async fn judge_elicitations(
        &self,
        flow: &mut Flow,
        data: &mut Box<RawValue>,
        container: &Arc<Container>,
        target: &Target,
    ) -> Verdict {
        if !self.ports.evaluator.asks(ELICITATION) {
            return Ok(());
        }
        let members = match Members::read(data) {
            Ok(members) => members,
            // Only an object can contain questions.
            Err(RawJsonError::NotAnObject) => return Ok(()),
            Err(error) => return Err(Denial::malformed(error)),
        };
        let Some(elicitations) = members.get("elicitations") else {
            return Ok(());
        };
        if !elicitations.starts_with('[') {
            return Err(Denial::malformed("`elicitations` must be an array"));
        }
        let mut judged = Vec::new();
        let mut changed = false;
        for elicitation in members.elements("elicitations") {
            Members::parse(elicitation).map_err(Denial::malformed)?;
            let params = RawValue::from_string(elicitation.to_owned());
            let params = params.map_err(Denial::malformed)?;
            let asked = self.judge_question(flow, ELICITATION, Some(&params), container, target);
            let modified = asked.await?;
            changed |= modified.is_some();
            judged.push(modified.unwrap_or(params));
        }
        if changed {
            let judged: Vec<_> = judged.iter().map(|params| params.get()).collect();
            let replaced = members.with("elicitations", &format!("[{}]", judged.join(",")));
            *data = RawValue::from_string(replaced).map_err(Denial::malformed)?;
        }
        Ok(())
    }

    async fn judge_input_requests(
        &self,
        flow: &mut Flow,
        result: &mut Box<RawValue>,
        container: &Arc<Container>,
        target: &Target,
    ) -> Verdict {
        let evaluator = &self.ports.evaluator;
        if !ASKED_OF_CLIENTS.iter().any(|method| evaluator.asks(method)) {
            return Ok(());
        }
        let members = match Members::read(result) {
            Ok(members) => members,
            // Only an object can contain questions.
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

    /// Judges one question; returns the text that replaces it, `None` if it passes unchanged.
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
        let asked = self.judge_question(flow, &method, params.as_deref(), container, target);
        let modified = asked.await?;
        Ok(modified.map(|modified| entry.with("params", modified.get())))
    }

    /// Judges the params of one question; returns their replacement, `None` if they pass unchanged.
    async fn judge_question(
        &self,
        flow: &mut Flow,
        method: &str,
        params: Option<&RawValue>,
        container: &Arc<Container>,
        target: &Target,
    ) -> Result<Option<Box<RawValue>>, Denial> {
        let question = Question {
            target,
            container,
            direction: Direction::ToClient,
            method,
            params,
            annotations: None,
            response: None,
        };
        let asked = self.ask_about(flow, question, None).await?;
        Ok(asked.modified)
    }
}
