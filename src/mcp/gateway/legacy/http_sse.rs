//! HTTP+SSE (2024-11-05): `GET /sse` opens a session with its only stream, `POST /message` carries
//! the client's messages.

use std::sync::Arc;

use addons::contract::Denial;
use http::StatusCode;
use serde_json::value::RawValue;

use super::super::super::error::method_not_found;
use super::super::super::message::{Id, Message, Outcome};
use super::super::super::random;
use super::super::answer::HttpResponse;
use super::super::lease::LeaseState;
use super::super::limits::{Counted, MAX_SESSIONS};
use super::super::media::{EVENT_STREAM, check_accept};
use super::super::refusal::{bad_request, over_limit, session_not_found};
use super::super::sse;
use super::super::visit::Visit;
use super::client_stream::ClientStream;
use super::handshake;
use super::post::{begin_call, notify, ping, take_answer};
use super::session::{LegacySession, Transport};
use super::streams::{attach, count_stream, events};

/// Path and query for messages, without the session's id.
const MESSAGE_PATH: &str = "/message?sessionId=";

/// Closes the session when the response to `GET /sse` is dropped.
struct SessionGuard {
    lease: Arc<LeaseState>,
    id: Arc<str>,
    _counted: Counted,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.lease.close_session(&self.id);
    }
}

pub fn open(visit: &Visit<'_>) -> Result<HttpResponse, Denial> {
    check_accept(visit.headers(), EVENT_STREAM)?;
    let counted = count_stream(visit)?;
    let (id, metrics) = (random::token()?, &visit.gateway.metrics);
    let opened = visit.lease.open_session(&id, Transport::HttpSse, metrics);
    let session = opened.ok_or_else(|| over_limit("MCP sessions of a container", MAX_SESSIONS))?;
    let guard = SessionGuard {
        lease: Arc::clone(&visit.lease),
        id: Arc::clone(&session.id),
        _counted: counted,
    };
    let (stream, _) = session.standalone(false, false);
    stream.push_event(sse::endpoint(&format!("{MESSAGE_PATH}{id}")));
    let reader = stream.read(None, visit.session().service.stopping.clone());
    Ok(events(reader, guard))
}

/// Answers `POST /message` with status 202. The response to a request is an event of the session's
/// stream.
pub async fn message(visit: &Visit<'_>, message: Message) -> Result<HttpResponse, Denial> {
    let session = session_of(visit)?;
    let caller = session.caller().cloned();
    match (message, caller) {
        (Message::Request { id, method, params }, None) if &*method == "initialize" => {
            initialize(visit, session, id, params).await;
        }
        (Message::Request { id, method, params }, Some(_)) if &*method == "ping" => {
            let outcome = ping(visit, params).await;
            respond(visit, session, &id, outcome).await;
        }
        (Message::Request { id, method, .. }, Some(_)) if &*method == "initialize" => {
            let sentence = "the session has begun already";
            return Err(bad_request(Some(&id), sentence));
        }
        (Message::Request { id, method, params }, Some(caller)) => {
            let guard = begin_call(visit, &session, &id)?;
            let call = visit.call(caller, method, params, None);
            let (stream, _) = session.standalone(false, false);
            let client = ClientStream::new(visit, session, stream);
            let tasks = &visit.session().service.tasks;
            tasks.spawn(client.call_on_shared(id, call, guard));
        }
        (Message::Notification { method, params }, Some(caller)) => {
            notify(visit, &session, caller, method, params).await;
        }
        (Message::Response { id, outcome }, Some(_)) => {
            return take_answer(visit, &session, id.as_ref(), outcome);
        }
        // A modern client probes with `server/discover`, and falls back to `initialize` after this
        // error.
        (Message::Request { id, method, .. }, None) if &*method == "server/discover" => {
            let outcome = Err(method_not_found(&method));
            respond(visit, session, &id, outcome).await;
        }
        (_, None) => {
            let sentence = "a session begins with initialize";
            return Err(bad_request(None, sentence));
        }
    }
    Ok(HttpResponse::empty(StatusCode::ACCEPTED))
}

async fn initialize(
    visit: &Visit<'_>,
    session: Arc<LegacySession>,
    id: Id,
    params: Option<Box<RawValue>>,
) {
    let handshake = async {
        let mut live = visit.judge("initialize", params.clone()).await?;
        live.complete();
        let caller = handshake::read(visit, params.as_deref(), &session.id)?;
        let outcome = handshake::answer(visit, &caller).await;
        if session.initialize(Arc::clone(&caller)) {
            let (stream, _) = session.standalone(false, false);
            attach(visit, &session, &stream, &caller);
        }
        outcome
    };
    let outcome = handshake.await;
    respond(visit, session, &id, outcome).await;
}

async fn respond(visit: &Visit<'_>, session: Arc<LegacySession>, id: &Id, outcome: Outcome) {
    let (stream, _) = session.standalone(false, false);
    let ended = session.ended.clone();
    let client = ClientStream::new(visit, session, stream);
    ended.run_until_cancelled(client.respond(id, outcome)).await;
}

/// The session that the query names.
fn session_of(visit: &Visit<'_>) -> Result<Arc<LegacySession>, Denial> {
    let query = visit.request.head.uri.query().unwrap_or_default();
    let mut named = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("sessionId="));
    let id = named.next().filter(|_| named.next().is_none());
    let Some(id) = id else {
        let sentence = "the query must have one sessionId";
        return Err(bad_request(None, sentence));
    };
    visit
        .lease
        .find_session(id, Transport::HttpSse)
        .ok_or_else(|| session_not_found("Session not found: open the stream again"))
}
