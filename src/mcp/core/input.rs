//! `input_required` results for legacy clients: the gateway sends the client each question as a
//! request, and repeats the call with the client's answers.

use std::sync::Arc;

use addons::contract::RpcError;
use addons::raw_json::{Members, ObjectText};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::error::SERVER_ERROR;
use super::exchange::{Failure, LONGEST_CALL};
use super::params::Change;
use super::relay::Relay;
use super::target::Ask;
use super::{Core, Event, Outcome, protocol_error};

/// The most `input_required` results of one call.
const MAX_ROUNDS: usize = 16;
/// The most questions of one result.
const MAX_REQUESTS: usize = 16;

/// An entry of `inputRequests`.
struct InputRequest {
    key: String,
    method: Arc<str>,
    params: Option<Box<RawValue>>,
}

/// An `input_required` result.
struct Wanted {
    requests: Vec<InputRequest>,
    state: Option<String>,
}

impl Core {
    /// Repeats a call until its result is complete.
    pub(super) async fn answer_inputs(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        first: Outcome,
    ) -> Result<Outcome, Failure> {
        let mut outcome = first;
        for _ in 0..MAX_ROUNDS {
            let Some(wanted) = outcome.as_deref().ok().and_then(Wanted::of) else {
                return Ok(outcome);
            };
            let answering = timeout(LONGEST_CALL, self.answers(ask, &wanted.requests));
            let answers = answering
                .await
                .map_err(|_elapsed| failed("The client did not answer"))??;
            let mut changes: Vec<Change<'_>> = ask.changes.to_vec();
            changes.push(("inputResponses", answers.as_deref()));
            changes.push(("requestState", wanted.state.as_deref()));
            let again = Ask {
                changes: &changes,
                ..*ask
            };
            outcome = self.ask_once(&again).await?;
        }
        let sentence = "The MCP server sent too many input_required results in one call";
        Err(failed(sentence).into())
    }

    /// Sends the questions to the client and returns its answers as `inputResponses`; `None`
    /// without questions.
    async fn answers(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        requests: &[InputRequest],
    ) -> Result<Option<String>, RpcError> {
        if requests.is_empty() {
            return Ok(None);
        }
        if requests.len() > MAX_REQUESTS {
            return Err(failed(
                "The MCP server sent too many input requests at once",
            ));
        }
        let chain = (self.rules)().chain;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller: &ask.request.caller,
            server: &ask.target.settings.name,
            client: &ask.request.events,
            definition: ask.target.definition.as_ref(),
            progress: None,
            // Modern servers take no progress notifications.
            session: None,
        };
        let answers = requests.iter().map(|request| answer(&relay, request));
        let answers = join_all(answers).await;
        let mut responses = ObjectText::default();
        for (request, answer) in requests.iter().zip(answers) {
            let key = &request.key;
            match answer {
                Ok(result) => responses.member(key, result.get()),
                // `inputResponses` cannot hold errors: `cancel` stands for a missing answer.
                Err(_) if &*request.method == "elicitation/create" => {
                    responses.member(key, "{\"action\":\"cancel\"}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(responses.end()))
    }
}

/// Sends one question to the client and awaits its answer.
async fn answer(relay: &Relay<'_>, request: &InputRequest) -> Outcome {
    let (reply, answer) = oneshot::channel();
    let event = Event::Request {
        method: Arc::clone(&request.method),
        params: request.params.clone(),
        reply,
    };
    if let Some(asking) = relay.pass_on(event, 0).await {
        asking.await;
    }
    let answer = answer.await;
    answer.unwrap_or_else(|_gone| Err(failed("The client did not answer")))
}

impl Wanted {
    /// Reads a result; `None` for a complete one.
    fn of(result: &RawValue) -> Option<Self> {
        // Nearly all results, some of which are large, need no parsing.
        if !result.get().contains("input_required") {
            return None;
        }
        let members = Members::read(result).ok()?;
        if members.text("resultType")? != "input_required" {
            return None;
        }
        let requests = members.get("inputRequests").map(Members::parse);
        let requests = requests.transpose().ok()?.unwrap_or_default();
        let requests = requests.iter().filter_map(|(key, request)| {
            let request = Members::parse(request).ok()?;
            let method = request.text("method")?.into();
            let params = request.get("params").map(ToOwned::to_owned);
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

fn failed(why: &'static str) -> RpcError {
    protocol_error(SERVER_ERROR, why)
}
