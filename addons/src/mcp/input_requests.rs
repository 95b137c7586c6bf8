//! Judges the questions to the client in a server's answer: `inputRequests` of a result
//! (2026-07-28), and `elicitations` of the error `URLElicitationRequired` (2025-11-25).

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Mcp;
use super::call::raw;
use super::denials::Target;
use super::input::Question;
use crate::contract::{Container, Denial, Direction, Flow, Frame, FrameBody, RpcError, Verdict};
use crate::raw_json::{Members, ObjectText, RawJsonError};

/// The methods of input requests in the specification.
const ASKED_OF_CLIENTS: [&str; 3] = [ELICITATION, "sampling/createMessage", "roots/list"];
const ELICITATION: &str = "elicitation/create";
/// Limit on the questions to the client in one answer, since the policies are evaluated for each.
/// An answer with more is denied if a policy covers a method that such questions may have.
pub const MAX_INPUT_REQUESTS: usize = 16;

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
            FrameBody::Outcome(Err(RpcError {
                code: RpcError::URL_ELICITATION_REQUIRED,
                data: Some(data),
                ..
            })) => self.judge_elicitations(flow, data, container, target).await,
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
        let Some(members) = object(data)? else {
            return Ok(());
        };
        let Some(elicitations) = members.get("elicitations") else {
            return Ok(());
        };
        if !elicitations.starts_with('[') {
            return Err(Denial::malformed("`elicitations` must be an array"));
        }
        let mut judged = Vec::new();
        let mut changed = false;
        let elicitations = members.elements("elicitations");
        check_number(elicitations.len())?;
        for elicitation in elicitations {
            Members::parse(elicitation).map_err(Denial::malformed)?;
            let params = raw(elicitation.to_owned())?;
            let asked = self.judge_question(flow, ELICITATION, Some(&params), container, target);
            let modified = asked.await?;
            changed |= modified.is_some();
            judged.push(modified.unwrap_or(params));
        }
        if changed {
            let judged: Vec<_> = judged.iter().map(|params| params.get()).collect();
            let replaced = members.with("elicitations", &format!("[{}]", judged.join(",")));
            *data = raw(replaced)?;
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
        let Some(members) = object(result)? else {
            return Ok(());
        };
        let requests = members.get("inputRequests").filter(|json| *json != "null");
        let Some(requests) = requests else {
            return Ok(());
        };
        let requests = Members::parse(requests).map_err(Denial::malformed)?;
        check_number(requests.iter().count())?;
        let mut judged = ObjectText::default();
        let mut changed = false;
        for (key, request) in requests.iter() {
            let entry = Members::parse(request).map_err(Denial::malformed)?;
            let method = entry.text("method");
            let method =
                method.ok_or_else(|| Denial::malformed("an input request has no method"))?;
            let params = entry.get("params").map(|params| raw(params.to_owned()));
            let params = params.transpose()?;
            let asked = self.judge_question(flow, &method, params.as_deref(), container, target);
            let modified = asked.await?;
            changed |= modified.is_some();
            match modified {
                Some(modified) => judged.member(key, &entry.with("params", modified.get())),
                None => judged.member(key, request),
            }
        }
        if changed {
            let replaced = members.with("inputRequests", &judged.end());
            *result = raw(replaced)?;
        }
        Ok(())
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
        self.ask_about(flow, question, None).await
    }
}

fn check_number(questions: usize) -> Verdict {
    if questions > MAX_INPUT_REQUESTS {
        let why = format!(
            "the answer asks the client {questions} questions, the limit is {MAX_INPUT_REQUESTS}"
        );
        return Err(Denial::malformed(why));
    }
    Ok(())
}

/// The members of an object; `None` for any other value, which cannot contain questions.
fn object(json: &RawValue) -> Result<Option<Members<'_>>, Denial> {
    match Members::read(json) {
        Ok(members) => Ok(Some(members)),
        Err(RawJsonError::NotAnObject) => Ok(None),
        Err(error) => Err(Denial::malformed(error)),
    }
}
