//! Modern servers that ask a legacy client something: their `input_required` result becomes
//! requests to the client, and the call is repeated with its answers.

use std::sync::Arc;

use addons::contract::RpcError;
use addons::raw_json::{Members, ObjectText};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::error::SERVER_ERROR;
use super::exchange::LONGEST_CALL;
use super::params::Change;
use super::relay::Relay;
use super::target::Ask;
use super::{Core, Event, Outcome, protocol_error};

/// How often one call may ask for something.
const MAX_ROUNDS: usize = 16;
/// What one result may ask for at once.
const MAX_REQUESTS: usize = 16;

/// A request to the client: its key, method and params.
type InputRequest = (String, Arc<str>, Option<Box<RawValue>>);

/// What a server wants before it goes on.
struct Wanted {
    requests: Vec<InputRequest>,
    state: Option<String>,
}

impl Core {
    /// Repeats a call until its answer asks for nothing any more.
    pub(super) async fn answer_inputs(self: &Arc<Self>, ask: &Ask<'_>, first: Outcome) -> Outcome {
        let mut outcome = first;
        for _ in 0..MAX_ROUNDS {
            let Some(wanted) = outcome.as_deref().ok().and_then(Wanted::of) else {
                return outcome;
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
        Err(failed(
            "The MCP server asks for more than it may in one call",
        ))
    }

    /// Asks the client, and returns its answers as `inputResponses`; `None` where nothing was asked
    /// for.
    async fn answers(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        requests: &[InputRequest],
    ) -> Result<Option<String>, RpcError> {
        if requests.is_empty() {
            return Ok(None);
        }
        if requests.len() > MAX_REQUESTS {
            return Err(failed("The MCP server asks for too much at once"));
        }
        let chain = (self.rules)().chain;
        let relay = Relay {
            core: self,
            chain: &chain,
            caller: ask.caller,
            server: &ask.target.settings.name,
            client: ask.events,
            definition: ask.target.definition.as_ref(),
            progress: None,
        };
        let asked = requests.iter().map(|(key, method, params)| {
            let relay = &relay;
            async move {
                let (reply, answer) = oneshot::channel();
                let event = Event::Request {
                    method: Arc::clone(method),
                    params: params.clone(),
                    reply,
                };
                if let Some(asking) = relay.pass_on(event, 0).await {
                    asking.await;
                }
                let answer = answer.await;
                (
                    key,
                    method,
                    answer.unwrap_or_else(|_gone| Err(failed("The client did not answer"))),
                )
            }
        });
        let mut responses = ObjectText::default();
        for (key, method, answer) in join_all(asked).await {
            match answer {
                Ok(result) => responses.member(key, result.get()),
                // There is no place for an error; this says that nobody answered.
                Err(_) if &**method == "elicitation/create" => {
                    responses.member(key, "{\"action\":\"cancel\"}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(responses.end()))
    }
}

impl Wanted {
    /// What a result asks for; `None` for one that is complete.
    fn of(result: &RawValue) -> Option<Self> {
        // Nearly all results are complete, and some are large.
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
            Some((key.to_owned(), method, params))
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
