//! Judges the requests to the client that a server's response contains: `inputRequests` of a result
//! (2026-07-28), and `elicitations` of the error `URLElicitationRequired` (2025-11-25).

use std::fmt::Display;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::Mcp;
use super::call::raw;
use super::denials::Target;
use super::input::EvaluatedMessage;
use crate::contract::{Container, Denial, Direction, Flow, Frame, FrameBody, RpcError, Verdict};
use crate::json::{Members, ObjectText, RawJsonError};

/// The methods that an input request may have (2026-07-28).
const INPUT_REQUEST_METHODS: [&str; 3] = [ELICITATION, "sampling/createMessage", "roots/list"];
const ELICITATION: &str = "elicitation/create";
/// Limit on the requests to the client in one response, since the policies are evaluated for each.
/// If a policy covers a method that such a request may have, a response with more requests is
/// denied. For a legacy client of a modern server, the gateway refuses such a response even if no
/// policy covers its requests.
pub const MAX_INPUT_REQUESTS: usize = 16;

impl Mcp {
    /// Judges each request to the client in a response as if the server had sent the request in a
    /// separate message.
    pub(super) async fn judge_input(
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
        if !self.ports.evaluator.covers(ELICITATION) {
            return Ok(());
        }
        let Some(members) = object(data)? else {
            return Ok(());
        };
        let Some(elicitations) = members.get("elicitations") else {
            return Ok(());
        };
        if !elicitations.starts_with('[') {
            return Err(unreadable("elicitations", "it is not an array"));
        }
        let mut judged = Vec::new();
        let mut changed = false;
        let elicitations = members.elements("elicitations");
        check_count(elicitations.len())?;
        for elicitation in elicitations {
            Members::parse(elicitation).map_err(|error| unreadable("elicitations", error))?;
            let params = raw(elicitation.to_owned())?;
            let judging =
                self.judge_request_to_client(flow, ELICITATION, Some(&params), container, target);
            let modified = judging.await?;
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
        let is_covered = |method: &&str| evaluator.covers(method);
        if !INPUT_REQUEST_METHODS.iter().any(is_covered) {
            return Ok(());
        }
        let Some(members) = object(result)? else {
            return Ok(());
        };
        let requests = members.get("inputRequests").filter(|json| *json != "null");
        let Some(requests) = requests else {
            return Ok(());
        };
        let malformed = |error| unreadable("inputRequests", error);
        let requests = Members::parse(requests).map_err(malformed)?;
        check_count(requests.iter().count())?;
        let mut judged = ObjectText::default();
        let mut changed = false;
        for (key, request) in requests.iter() {
            let entry = Members::parse(request).map_err(malformed)?;
            let no_method = || unreadable("inputRequests", "a request has no method");
            let method = entry.text("method").ok_or_else(no_method)?;
            let params = entry.get("params").map(|params| raw(params.to_owned()));
            let params = params.transpose()?;
            let judging =
                self.judge_request_to_client(flow, &method, params.as_deref(), container, target);
            let modified = judging.await?;
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

    /// Judges the params of one request to the client. Returns their replacement; `None` if they
    /// pass unchanged.
    async fn judge_request_to_client(
        &self,
        flow: &mut Flow,
        method: &str,
        params: Option<&RawValue>,
        container: &Arc<Container>,
        target: &Target,
    ) -> Result<Option<Box<RawValue>>, Denial> {
        let message = EvaluatedMessage {
            target,
            container,
            direction: Direction::ToClient,
            method,
            params,
            annotations: None,
            response: None,
        };
        self.enforce(flow, message, None).await
    }
}

fn check_count(requests: usize) -> Verdict {
    if requests > MAX_INPUT_REQUESTS {
        let why = format!(
            "the server's response has {requests} requests to the client, the limit is {MAX_INPUT_REQUESTS}"
        );
        return Err(Denial::malformed(why));
    }
    Ok(())
}

/// The denial of a response whose member cannot be read.
fn unreadable(member: &str, why: impl Display) -> Denial {
    Denial::malformed(format_args!("`{member}` of the server's response: {why}"))
}

/// The members of an object; `None` for any other value, which cannot contain requests.
fn object(json: &RawValue) -> Result<Option<Members<'_>>, Denial> {
    match Members::read(json) {
        Ok(members) => Ok(Some(members)),
        Err(RawJsonError::NotAnObject) => Ok(None),
        Err(error) => Err(Denial::malformed(error)),
    }
}
