//! A repeated request with `inputResponses`.

use std::collections::HashMap;
use std::sync::Arc;

use addons::contract::Denial;
use serde_json::value::RawValue;

use super::super::super::caller::Caller;
use super::super::super::error::{INVALID_PARAMS, protocol_error, rpc_error};
use super::super::super::event::Events;
use super::super::answer::HttpResponse;
use super::super::visit::Visit;
use super::params::{ModernParams, object};
use super::request::{Request, json_response};
use super::run::{Running, run};
use super::suspended::suspend;

/// Judges a retry, and resumes the call that is suspended under `state`. If input requests are
/// still unanswered, sends these again and suspends the call again, under another state.
pub async fn resume(
    visit: &Visit<'_>,
    request: &Request,
    (read, caller): (&ModernParams<'_>, Arc<Caller>),
    state: &str,
) -> Result<HttpResponse, Denial> {
    let waiting = &visit.lease.suspended;
    let binding = match waiting.has(state) {
        true => request.binding(visit, &caller).await?,
        false => "".into(),
    };
    let Some(mut entry) = waiting.take(state, &binding) else {
        let message = "requestState is unknown, has expired or belongs to another request";
        return Err(request.refuse(protocol_error(INVALID_PARAMS, message)));
    };
    let (method, params) = (Arc::clone(&request.method), request.params.clone());
    let events = Events::continuing(&entry.call.state);
    let retry = visit.client_request(caller, method, params, events);
    let judged = match visit.gateway.core.judge_retry(&retry).await {
        Ok(judged) => judged,
        Err(error) => {
            // Cancels the call at its server.
            drop(entry);
            return Ok(json_response(visit, &request.id, &Err(error)));
        }
    };
    // The answers as a policy left them, not as the client sent them.
    let answers = ModernParams::read(judged.as_deref()).input_responses;
    let answers: HashMap<String, Box<RawValue>> = object(answers).unwrap_or_default();
    if entry.answer(answers) {
        let running = Running::resume(visit, request, read, entry.call, binding);
        return Ok(run(visit, running).await);
    }
    let gateway = visit.gateway;
    let suspended = suspend(waiting, &gateway.suspended, &gateway.metrics, entry);
    let outcome = suspended.map_err(|denial| rpc_error(&denial));
    Ok(json_response(visit, &request.id, &outcome))
}
