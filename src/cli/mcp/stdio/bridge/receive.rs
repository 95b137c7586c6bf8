//! Reads the gateway's responses to POST requests and its SSE streams.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tokio::time::sleep;

use super::Bridge;
use super::response::{CallFailure, Response, next};
use super::sessions::Session;
use crate::cli::exit::warn;
use crate::cli::mcp::http_client::{HttpResponse, MAX_MESSAGE};
use crate::cli::mcp::rpc::refusal;
use crate::mcp::{EventReader, Id, LAST_EVENT_ID, Message, write_response};

/// Delay before a stream is requested again, unless the gateway sets one.
const RECONNECT: Duration = Duration::from_secs(1);
/// Number of consecutive reconnections without an event after which a stream is given up.
const MAX_FRUITLESS: u32 = 5;

impl Bridge {
    /// Reads the response to a request, and relays the messages before the response.
    pub async fn read(
        &self,
        response: HttpResponse,
        id: &Id,
        session: Option<&Arc<Session>>,
    ) -> Result<Response, CallFailure> {
        if is_gone(&response, session) {
            return Err(CallFailure::SessionGone);
        }
        if response.status == StatusCode::OK && response.is_stream() {
            return self.follow(response, id, session).await;
        }
        let status = response.status;
        let body = response.whole().await?;
        match Message::parse(&body, usize::MAX) {
            Ok(Message::Response { id: of, outcome }) => {
                let text = match of.as_ref() == Some(id) {
                    true => body,
                    // A gateway that could not parse the request responds with the id `null`. The
                    // client matches responses by id, so the response gets the request's id.
                    false => write_response(Some(id), &outcome).into(),
                };
                Ok(Response { text, outcome })
            }
            _ if status == StatusCode::ACCEPTED => Err(CallFailure::NoResponse),
            _ => Err(CallFailure::Refused(refusal(status, &body))),
        }
    }

    /// Reads the HTTP response to a notification or a JSON-RPC response. Fails unless the status is
    /// 2xx.
    pub async fn accepted(
        &self,
        response: HttpResponse,
        session: Option<&Arc<Session>>,
    ) -> Result<(), CallFailure> {
        if is_gone(&response, session) {
            return Err(CallFailure::SessionGone);
        }
        let status = response.status;
        let body = response.whole().await?;
        if status.is_success() {
            return Ok(());
        }
        match Message::parse(&body, usize::MAX) {
            Ok(Message::Response {
                outcome: Err(error),
                ..
            }) => Err(CallFailure::Refused(error)),
            _ => Err(CallFailure::Refused(refusal(status, &body))),
        }
    }

    /// Reads the stream of a request up to the response. If the connection ends before the
    /// response, resumes the stream over another connection. This fails if there is no session, if
    /// the gateway sent no event id, if the stream cannot be opened again, or after
    /// [`MAX_FRUITLESS`] consecutive reconnections without an event. An event that is too long is a
    /// failure at any time.
    async fn follow(
        &self,
        mut response: HttpResponse,
        id: &Id,
        session: Option<&Arc<Session>>,
    ) -> Result<Response, CallFailure> {
        let mut reader = EventReader::new(MAX_MESSAGE);
        let mut fruitless = 0;
        loop {
            while let Ok(Some(mut piece)) = response.piece().await {
                while let Some(event) = next(&mut reader, &mut piece)? {
                    fruitless = 0;
                    if let Some(relayed) = self.relay(event, Some(id)).await {
                        return Ok(relayed);
                    }
                }
            }
            fruitless += 1;
            let session = session.ok_or(CallFailure::Closed)?;
            if reader.last_event_id().is_none() || fruitless > MAX_FRUITLESS {
                return Err(CallFailure::Closed);
            }
            sleep(reader.retry().unwrap_or(RECONNECT)).await;
            reader.reconnect();
            response = self.open_stream(session, Some(&reader)).await?;
        }
    }

    /// Requests the session's standalone stream. If `behind` has read an event id, requests the
    /// events after that id instead.
    pub async fn open_stream(
        &self,
        session: &Arc<Session>,
        behind: Option<&EventReader>,
    ) -> Result<HttpResponse, CallFailure> {
        let mut fields = session.fields();
        let last = behind.and_then(EventReader::last_event_id);
        if let Some(last) = last.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            fields.insert(LAST_EVENT_ID, last);
        }
        let response = self.http.stream(fields).await?;
        if is_gone(&response, Some(session)) {
            return Err(CallFailure::SessionGone);
        }
        if response.status == StatusCode::OK && response.is_stream() {
            return Ok(response);
        }
        let status = response.status;
        let body = response.whole().await?;
        Err(CallFailure::Refused(refusal(status, &body)))
    }

    /// Relays one event, or returns it if it is the response to `call`. Drops any other response
    /// and an invalid message, with a warning.
    pub async fn relay(&self, data: Vec<u8>, call: Option<&Id>) -> Option<Response> {
        match Message::parse(&data, usize::MAX) {
            Ok(Message::Response { id, outcome }) if call.is_some() && id.as_ref() == call => {
                let text = data.into();
                return Some(Response { text, outcome });
            }
            Ok(Message::Response { .. }) => {
                warn("dropped a response of the gateway: it answers no request of this stream")
            }
            Ok(_) => self.output.message(data).await,
            Err(error) => warn(format_args!("dropped an event of the gateway: {error}")),
        }
        None
    }
}

/// Whether the gateway does not know the session: status 404 to a request with a session id.
fn is_gone(response: &HttpResponse, session: Option<&Arc<Session>>) -> bool {
    response.status == StatusCode::NOT_FOUND && session.is_some_and(|session| session.has_id())
}
