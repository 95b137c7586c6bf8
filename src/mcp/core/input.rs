//! `input_required` results for legacy clients: the gateway sends the client each input request
//! separately, and repeats the call with the client's answers.

use std::sync::Arc;

use addons::contract::RpcError;
use addons::json::{Members, ObjectText};
use addons::mcp::MAX_INPUT_REQUESTS;
use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::error::SERVER_ERROR;
use super::exchange::{Attempt, Failure, LONGEST_CALL};
use super::params::Change;
use super::relay::{Relay, unanswered};
use super::results::input_required;
use super::target::Target;
use super::{
    ClientRequest, Core, Event, MessageReservation, Outcome, Params, protocol_error, rpc_error,
};

/// The most `input_required` results of one call. A further result fails the call.
const MAX_ROUNDS: usize = 16;

/// An entry of `inputRequests`.
struct InputRequest {
    key: String,
    method: Arc<str>,
    params: Option<Box<RawValue>>,
}

/// An `input_required` result.
struct InputRequired {
    requests: Vec<InputRequest>,
    state: Option<String>,
}

impl Core {
    /// Repeats a call until its result is complete. Fails if the result is not complete after
    /// [`MAX_ROUNDS`] repetitions. `outcome` is the outcome of the first attempt.
    pub(super) async fn answer_inputs(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        changes: &[Change<'_>],
        mut outcome: Outcome,
        attempt: &mut Attempt,
    ) -> Result<Outcome, Failure> {
        let mut rounds = 0;
        while let Some(required) = outcome.as_deref().ok().and_then(InputRequired::of) {
            if rounds == MAX_ROUNDS {
                let sentence = "The MCP server sent too many input_required results in one call";
                return Err(protocol_error(SERVER_ERROR, sentence).into());
            }
            rounds += 1;
            let requesting = self.request_inputs(request, target, &required.requests);
            let answers = timeout(LONGEST_CALL, requesting).await;
            let answers = answers.map_err(|_elapsed| unanswered())??;
            let text = answers.as_ref().map(|(text, _memory)| &**text);
            let mut changes = changes.to_vec();
            changes.push(("inputResponses", text));
            changes.push(("requestState", required.state.as_deref()));
            let mut sent = self.forward_once(request, target, &changes, attempt).await;
            // The request with the answers was not sent: a person must decide about it.
            if let Some(asked) = attempt.asked.take() {
                let approved = self.wait_for_person(request, asked).await?;
                // The definition may have changed meanwhile.
                let found = self.called_tool(request).await?;
                let judged = target.definition.as_ref();
                if judged.is_none_or(|judged| judged.raw.get() != found.definition.raw.get()) {
                    return Err(approved.end().into());
                }
                attempt.approved = Some(approved);
                sent = self.forward_once(request, target, &changes, attempt).await;
            }
            outcome = sent?;
        }
        Ok(outcome)
    }

    /// Sends the input requests to the client, and returns the answers as `inputResponses`, with
    /// their memory; `None` without input requests.
    async fn request_inputs(
        self: &Arc<Self>,
        request: &ClientRequest,
        target: &Target,
        input_requests: &[InputRequest],
    ) -> Result<Option<(String, Vec<MessageReservation>)>, RpcError> {
        if input_requests.is_empty() {
            return Ok(None);
        }
        if input_requests.len() > MAX_INPUT_REQUESTS {
            let sentence = "The MCP server sent too many input requests at once";
            return Err(protocol_error(SERVER_ERROR, sentence));
        }
        let chain = (self.rules)().chain;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller: &request.caller,
            server: &target.settings.name,
            client: &request.events,
            definition: target.definition.as_ref(),
            progress: None,
            // Modern servers take no progress notifications.
            session: None,
        };
        let answers = input_requests.iter().map(|one| request_input(&relay, one));
        let answers = join_all(answers).await;
        let (mut responses, mut memory) = (ObjectText::default(), Vec::new());
        for (input_request, (answer, charged)) in input_requests.iter().zip(answers) {
            let key = &input_request.key;
            memory.push(charged);
            match answer {
                Ok(result) => responses.member(key, result.get()),
                // `inputResponses` cannot contain errors. `cancel` replaces the error of an
                // elicitation; the error of any other input request fails the call.
                Err(_) if &*input_request.method == "elicitation/create" => {
                    responses.member(key, "{\"action\":\"cancel\"}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some((responses.end(), memory)))
    }
}

/// Sends one input request to the client, and awaits the answer. The answer is charged, since its
/// HTTP request has ended.
async fn request_input(
    relay: &Relay<'_>,
    input_request: &InputRequest,
) -> (Outcome, MessageReservation) {
    let (reply, answer) = oneshot::channel();
    let event = Event::Request {
        method: Arc::clone(&input_request.method),
        params: input_request.params.clone().map(Params::from),
        reply,
    };
    if let Some(exchange) = relay.pass_on(event, 0).await {
        exchange.await;
    }
    let answer = answer.await.unwrap_or_else(|_gone| Err(unanswered()));
    let held = relay.client.hold(answer);
    held.unwrap_or_else(|denial| (Err(rpc_error(&denial)), MessageReservation::default()))
}

impl InputRequired {
    /// Reads a result; `None` if the result is not `input_required`, or is malformed.
    fn of(result: &RawValue) -> Option<Self> {
        let members = input_required(result)?;
        let requests = members.get("inputRequests").map(Members::parse);
        let requests = requests.transpose().ok()?.unwrap_or_default();
        let requests = requests.iter().filter_map(|(key, request)| {
            let request = Members::parse(request).ok()?;
            let method = request.text("method")?.into();
            let params = request.get("params").map(str::to_owned);
            let params = params.and_then(|params| RawValue::from_string(params).ok());
            Some(InputRequest {
                key: key.to_owned(),
                method,
                params,
            })
        });
        Some(Self {
            requests: requests.collect(),
            state: members.get("requestState").map(ToOwned::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_asks_for_input_however_its_type_is_escaped() {
        let rows = [
            (r#"{"resultType":"input_required"}"#, true),
            (r#"{"resultType":"input\u005frequired"}"#, true),
            (r#"{"result\u0054ype":"\u0069nput_required"}"#, true),
            (
                r#"{"resultType":"complete","content":"input_required"}"#,
                false,
            ),
            (r#"{"resultType":"complete","content":"\u001b"}"#, false),
        ];
        for (text, asks) in rows {
            let result = RawValue::from_string(text.to_owned()).unwrap();
            assert_eq!(input_required(&result).is_some(), asks, "{text}");
            assert_eq!(InputRequired::of(&result).is_some(), asks, "{text}");
        }
    }
}
