//! POST to `/mcp` in a legacy revision.

use std::sync::Arc;

use addons::contract::Denial;
use futures_util::stream;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::super::super::caller::Caller;
use super::super::super::error::raw;
use super::super::super::fields::{PROTOCOL_VERSION, SESSION_ID};
use super::super::super::message::{Id, Message, Outcome};
use super::super::super::random;
use super::super::super::version::{Era, Version};
use super::super::answer::{HttpResponse, STREAM_AFTER, response_bytes};
use super::super::call::{Call, Step};
use super::super::header::only;
use super::super::limits::{MAX_CALLS, MAX_SESSIONS};
use super::super::media::{accepts_events, prefers_events};
use super::super::refusal::{bad_request, over_limit, session_not_found};
use super::super::visit::Visit;
use super::client_stream::ClientStream;
use super::handshake;
use super::session::{CallGuard, LegacySession, NotBegun, Transport};

pub async fn post(visit: &Visit<'_>, message: Message) -> Result<HttpResponse, Denial> {
    if let Message::Request { id, method, params } = &message
        && &**method == "initialize"
    {
        return initialize(visit, id, params.as_deref()).await;
    }
    let (session, caller) = session_of(visit)?;
    match message {
        Message::Request { id, method, params } if &*method == "ping" => {
            let outcome = ping(visit, params).await;
            Ok(json_response(visit, &id, &outcome))
        }
        Message::Request { id, method, params } => {
            let guard = begin_call(visit, &session, &id)?;
            let call = visit.call(caller, method, params, None);
            Ok(run(visit, session, id, call, guard).await)
        }
        Message::Notification { method, params } => {
            notify(visit, &session, caller, method, params).await;
            Ok(HttpResponse::empty(StatusCode::ACCEPTED))
        }
        Message::Response { id, outcome } => take_answer(visit, &session, id.as_ref(), outcome),
    }
}

/// The session that a request names, with its client.
pub fn session_of(visit: &Visit<'_>) -> Result<(Arc<LegacySession>, Arc<Caller>), Denial> {
    let Some(id) = only(visit.headers(), &SESSION_ID)? else {
        let sentence = "Mcp-Session-Id is missing: begin with initialize";
        return Err(bad_request(None, sentence));
    };
    if let Some(version) = only(visit.headers(), &PROTOCOL_VERSION)? {
        let known = Version::parse(version).is_some_and(|version| version.era() == Era::Legacy);
        if !known {
            let sentence = format!(
                "MCP-Protocol-Version {version} cannot be used in a session: send the version that initialize returned"
            );
            return Err(bad_request(None, sentence));
        }
    }
    let session = visit.lease.find_session(id, Transport::StreamableHttp);
    let session = session
        .ok_or_else(|| session_not_found("Session not found: begin again with initialize"))?;
    let caller = session.caller().cloned().ok_or_else(Denial::internal)?;
    Ok((session, caller))
}

async fn initialize(
    visit: &Visit<'_>,
    id: &Id,
    params: Option<&RawValue>,
) -> Result<HttpResponse, Denial> {
    if only(visit.headers(), &SESSION_ID)?.is_some() {
        let sentence = "initialize begins a new session: send it without Mcp-Session-Id";
        return Err(bad_request(Some(id), sentence));
    }
    let mut live = match visit
        .judge("initialize", params.map(RawValue::to_owned))
        .await
    {
        Ok(live) => live,
        Err(error) => return Ok(json_response(visit, id, &Err(error))),
    };
    let session_id: Arc<str> = random::token()?.into();
    let caller = match handshake::read(visit, params, &session_id) {
        Ok(caller) => caller,
        Err(error) => {
            live.complete();
            return Ok(json_response(visit, id, &Err(error)));
        }
    };
    let outcome = handshake::answer(visit, &caller).await;
    let (metrics, transport) = (&visit.gateway.metrics, Transport::StreamableHttp);
    let Some(session) = visit.lease.open_session(&session_id, transport, metrics) else {
        let denial = over_limit("MCP sessions of a container", MAX_SESSIONS);
        live.denied(&denial);
        return Err(denial);
    };
    session.initialize(caller);
    live.complete();
    let mut response = json_response(visit, id, &outcome);
    let session_id = HeaderValue::from_str(&session_id);
    if let (HttpResponse::Whole(response), Ok(session_id)) = (&mut response, session_id) {
        response.headers_mut().insert(SESSION_ID, session_id);
    }
    Ok(response)
}

pub async fn ping(visit: &Visit<'_>, params: Option<Box<RawValue>>) -> Outcome {
    let mut live = visit.judge("ping", params).await?;
    live.complete();
    Ok(raw(json!({})).unwrap_or_default())
}

/// Registers a request as under way.
pub fn begin_call(
    visit: &Visit<'_>,
    session: &Arc<LegacySession>,
    id: &Id,
) -> Result<CallGuard, Denial> {
    session.begin_call(id).map_err(|why| match why {
        NotBegun::SameId => bad_request(Some(id), "a request with this id is under way"),
        NotBegun::TooMany => {
            visit.gateway.metrics.hit("calls");
            over_limit("MCP requests under way in a session", MAX_CALLS)
        }
    })
}

/// Waits for the outcome and answers with JSON. Answers with a resumable stream instead if an event
/// comes first, the call takes longer than [`STREAM_AFTER`], or `Accept` lists event streams first.
/// A call that is cancelled before any of these gets an empty stream. A client that accepts no
/// event streams gets no events.
async fn run(
    visit: &Visit<'_>,
    session: Arc<LegacySession>,
    id: Id,
    mut call: Call,
    guard: CallGuard,
) -> HttpResponse {
    if !accepts_events(visit.headers()) {
        return tokio::select! {
            biased;
            () = guard.cancelled.cancelled() => HttpResponse::empty(StatusCode::ACCEPTED),
            outcome = call.outcome() => json_response(visit, &id, &outcome),
        };
    }
    let first = tokio::select! {
        biased;
        // A cancelled request gets no response.
        () = guard.cancelled.cancelled() => return HttpResponse::Events(Box::pin(stream::empty())),
        step = timeout(STREAM_AFTER, call.next()) => step,
    };
    let prefers_events = prefers_events(visit.headers());
    let (event, done) = match first {
        Ok(Step::Done(outcome)) if !prefers_events => return json_response(visit, &id, &outcome),
        Ok(Step::Done(outcome)) => (None, Some(outcome)),
        Ok(Step::Event(event)) => (Some(event), None),
        Err(_elapsed) => (None, None),
    };
    // A primed stream begins with an event that has an id and empty data. Clients of revisions
    // before 2025-11-25 would parse that event as a message.
    let primed = session
        .caller()
        .is_some_and(|caller| caller.version >= Version::V2025_11_25);
    let stream = session.stream_of_call(primed);
    let client = ClientStream::new(visit, session, Arc::clone(&stream));
    let service = &visit.session().service;
    let reader = stream.read(None, service.killed.clone());
    // The messages are written in a task: the write may wait for the client to read the stream, and
    // the client can read only after this function returns.
    match done {
        Some(outcome) => service.tasks.spawn(client.response(id, outcome, guard)),
        None => service.tasks.spawn(client.call(id, call, event, guard)),
    };
    HttpResponse::Events(Box::pin(reader))
}

#[derive(Deserialize)]
struct Cancelled<'a> {
    #[serde(borrow, rename = "requestId")]
    request_id: &'a RawValue,
}

/// Handles a notification. `notifications/cancelled` cancels the call in this session and is not
/// forwarded, since servers do not see the client's request ids.
pub async fn notify(
    visit: &Visit<'_>,
    session: &LegacySession,
    caller: Arc<Caller>,
    method: Arc<str>,
    params: Option<Box<RawValue>>,
) {
    if &*method != "notifications/cancelled" {
        let core = Arc::clone(&visit.gateway.core);
        return core.notify(caller, method, params).await;
    }
    let text = params.as_deref().map_or("", RawValue::get);
    let cancelled = text.starts_with('{').then(|| serde_json::from_str(text));
    if let Some(Ok(Cancelled { request_id })) = cancelled
        && let Some(id) = Id::parse(request_id.get())
    {
        session.cancel_call(&id);
    }
}

/// Passes on a response of the client. If no request waits for the response, drops the response and
/// records it as malformed; the status is 202 nevertheless, since the server may have stopped
/// waiting while the client answered.
pub fn take_answer(
    visit: &Visit<'_>,
    session: &LegacySession,
    id: Option<&Id>,
    outcome: Outcome,
) -> Result<HttpResponse, Denial> {
    if !id.is_some_and(|id| session.answered(id, outcome)) {
        let sentence =
            "Malformed request: the response's id matches no request that waits for an answer";
        visit.note("response", sentence);
    }
    Ok(HttpResponse::empty(StatusCode::ACCEPTED))
}

fn json_response(visit: &Visit<'_>, id: &Id, outcome: &Outcome) -> HttpResponse {
    HttpResponse::json(StatusCode::OK, response_bytes(&visit.memory, id, outcome))
}
