//! GET and DELETE of `/mcp`: the stream for messages outside requests, resumed streams, and the end
//! of a session.

use std::sync::Arc;

use addons::contract::Denial;
use futures_util::StreamExt;
use http::StatusCode;

use super::super::super::caller::Caller;
use super::super::super::core::Interest;
use super::super::super::fields::LAST_EVENT_ID;
use super::super::super::version::Version;
use super::super::answer::HttpResponse;
use super::super::header::only;
use super::super::limits::{Counted, MAX_STREAMS};
use super::super::media::{EVENT_STREAM, check_accept};
use super::super::refusal::{bad_request, over_limit};
use super::super::visit::Visit;
use super::client_stream::ClientStream;
use super::event_stream::{EventStream, Reader};
use super::post::session_of;
use super::session::LegacySession;

pub fn get(visit: &Visit<'_>) -> Result<HttpResponse, Denial> {
    check_accept(visit.headers(), EVENT_STREAM)?;
    let (session, caller) = session_of(visit)?;
    let counted = count_stream(visit)?;
    let (stream, after) = match only(visit.headers(), &LAST_EVENT_ID)? {
        Some(last) => {
            let (stream, after) = find(&session, last).ok_or_else(|| {
                let sentence =
                    format!("Last-Event-ID {last:?} names no stream that the session still keeps");
                bad_request(None, sentence)
            })?;
            (stream, Some(after))
        }
        None => {
            let primed = caller.version >= Version::V2025_11_25;
            let (stream, is_new) = session.standalone(true, primed);
            if is_new {
                attach(visit, &session, &stream, &caller);
            }
            (stream, None)
        }
    };
    let stopping = visit.session().service.stopping.clone();
    Ok(events(stream.read(after, stopping), counted))
}

pub fn delete(visit: &Visit<'_>) -> Result<HttpResponse, Denial> {
    let (session, _) = session_of(visit)?;
    visit.lease.close_session(&session.id);
    Ok(HttpResponse::empty(StatusCode::NO_CONTENT))
}

/// Counts a stream against [`MAX_STREAMS`].
pub fn count_stream(visit: &Visit<'_>) -> Result<Counted, Denial> {
    let metrics = &visit.gateway.metrics;
    let counted = visit.lease.streams.enter(MAX_STREAMS, &metrics.streams);
    counted.ok_or_else(|| {
        metrics.hit("streams");
        over_limit("MCP streams of a container", MAX_STREAMS)
    })
}

/// Relays messages outside requests to the stream of a session.
pub fn attach(
    visit: &Visit<'_>,
    session: &Arc<LegacySession>,
    stream: &Arc<EventStream>,
    caller: &Arc<Caller>,
) {
    let (sender, events) = visit.events();
    let core = &visit.gateway.core;
    let attachment = core.attach(caller, Interest::Everything, sender);
    let client = ClientStream::new(visit, Arc::clone(session), Arc::clone(stream));
    tokio::spawn(client.unsolicited(events, attachment));
}

/// A response with the events of a stream. The guard is dropped with the response.
pub fn events(reader: Reader, guard: impl Send + 'static) -> HttpResponse {
    HttpResponse::Events(Box::pin(reader.map(move |event| {
        let _ = &guard;
        event
    })))
}

/// Finds the stream that an event id names, and returns it with the number of the event.
fn find(session: &LegacySession, event: &str) -> Option<(Arc<EventStream>, u64)> {
    let (stream, number) = event.split_once('-')?;
    let stream = session.find_stream(stream.parse().ok()?)?;
    Some((stream, number.parse().ok()?))
}
