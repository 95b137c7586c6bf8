//! Reads HTTP responses of servers within bounds: one message, or a stream of messages.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::Denial;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::{sleep, timeout};

use super::drain::drain;
use super::event_stream::{EventReader, StreamEvent};
use super::wire::Wire;
use crate::http::{Answer, AnswerBody, BodyError, OwnClient};
use crate::mcp::message::{Id, Message, Outcome};
use crate::mcp::mounts::pace::Pace;
use crate::mcp::mounts::{MessageReservation, MountError};
use crate::mcp::warnings::{OTHER_ID, deviates};

/// Limit on the events of one stream that are read per second. Above it, reading pauses, and flow
/// control stops the server.
const MAX_EVENTS: u32 = 1000;

/// The response to a POST.
pub enum Answered {
    /// One message.
    Message(Message),
    /// A stream of messages.
    Stream(Box<EventStream>),
    /// No message: status 202 or 204, with which a server accepts a notification or a response.
    Accepted,
}

impl Answered {
    /// Reads a JSON message to its end; returns an event stream unread. Fails if the media type is
    /// neither JSON nor an event stream. Also fails if the status is not 2xx and the body is not a
    /// JSON-RPC error.
    pub async fn read(wire: &Wire, answer: Answer) -> Result<Self, MountError> {
        let Answer {
            status,
            headers,
            body,
        } = answer;
        match (status, content_type(&headers)) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
                drain(body);
                Ok(Self::Accepted)
            }
            (status, kind) if status.is_success() => match kind {
                "text/event-stream" => Ok(Self::Stream(Box::new(EventStream::new(wire, body)))),
                "application/json" => read_message(wire, body).await.map(Self::Message),
                other => {
                    let error = unknown_type(other);
                    drain(body);
                    Err(error)
                }
            },
            (status, "application/json") => match read_message(wire, body).await {
                Ok(
                    message @ Message::Response {
                        outcome: Err(_), ..
                    },
                ) => Ok(Self::Message(message)),
                Err(denied @ MountError::Denied(_)) => Err(denied),
                _ => Err(bad_status(status)),
            },
            (status, _) => {
                drain(body);
                Err(bad_status(status))
            }
        }
    }
}

/// Reads the response to a notification or to an answer of the client. Accepts every success,
/// whatever its body.
pub async fn read_accepted(wire: &Wire, answer: Answer) -> Result<(), MountError> {
    match answer.status {
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT => {}
        status if status.is_success() => deviates(
            &wire.server,
            "it accepts notifications with another status than 202",
        ),
        _ => return Answered::read(wire, answer).await.map(drop),
    }
    drain(answer.body);
    Ok(())
}

/// The media type of a response without its parameters; empty without a readable `Content-Type`.
/// The two types of the protocol are returned in lower case, any other as the server wrote it.
fn content_type(headers: &HeaderMap) -> &str {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value
        .and_then(|value| value.split(';').next())
        .unwrap_or("")
        .trim();
    let known = ["application/json", "text/event-stream"];
    let known = known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(essence));
    known.unwrap_or(essence)
}

/// The error for a response with a media type other than the two of the protocol.
pub fn unknown_type(found: &str) -> MountError {
    let found: String = found.chars().take(80).collect();
    MountError::Protocol(match found.as_str() {
        "" => "the server answered without a readable Content-Type".to_owned(),
        found => format!(
            "the server answered with Content-Type {found:?}, not with JSON or an event stream"
        ),
    })
}

/// The error for a status other than 2xx.
pub fn bad_status(status: StatusCode) -> MountError {
    let hint = match status.as_u16() {
        300..=399 => {
            ": redirects are not followed, except 307 and 308 within the server at the beginning of \
             a session: write the final URL into mcp.yaml"
        }
        401 | 403 => ": the server does not accept the credentials in headers (mcp.yaml)",
        404 | 405 => ": the URL is not an MCP endpoint of this transport",
        _ => "",
    };
    MountError::Protocol(format!("the server answered {status}{hint}"))
}

/// Returns the outcome of a request if the message answers it, otherwise the message. An error
/// without an id counts as an answer: a server sends it when it cannot read the request's id.
pub fn outcome_of(message: Message, id: &Id) -> Result<Outcome, Message> {
    match message {
        Message::Response {
            id: answered,
            outcome,
        } if answered.as_ref() == Some(id) || (answered.is_none() && outcome.is_err()) => {
            Ok(outcome)
        }
        other => Err(other),
    }
}

async fn read_message(wire: &Wire, mut body: AnswerBody) -> Result<Message, MountError> {
    let client = &wire.client;
    let limits = client.limits();
    let mut reservation = MessageReservation::default();
    let mut text = Vec::new();
    while let Some(chunk) = body.chunk().await.map_err(broke_off)? {
        if text.len().saturating_add(chunk.len()) > limits.inspect_body_bytes {
            return Err(too_long(limits.inspect_body_bytes));
        }
        text.extend_from_slice(&chunk);
        let reserved = reservation.grow_to(client, text.capacity());
        reserved.map_err(MountError::Denied)?;
    }
    parse(&wire.server, &text, limits.inspect_values)
}

/// Reads a message. The id of a response gets the form in which the gateway writes its ids.
fn parse(server: &str, text: &[u8], most_values: usize) -> Result<Message, MountError> {
    let mut message = Message::parse(text, most_values).map_err(|error| {
        MountError::Protocol(format!("the server sent an invalid MCP message: {error}"))
    })?;
    if let Message::Response { id: Some(id), .. } = &mut message
        && let Some(ours) = id.as_number().map(Id::number)
        && *id != ours
    {
        deviates(server, OTHER_ID);
        *id = ours;
    }
    Ok(message)
}

fn too_long(most: usize) -> MountError {
    let sentence =
        format!("the server sent a message of more than {most} bytes (limits.inspect_body_bytes)");
    MountError::Protocol(sentence)
}

fn broke_off(error: BodyError) -> MountError {
    match error {
        BodyError::Denied(denial) => MountError::Denied(denial),
        BodyError::Peer(_) => MountError::Protocol("the server aborted its answer".to_owned()),
    }
}

/// Why a stream has no next message.
pub enum StreamEnd {
    /// The connection ended, or no byte arrived within the limit of [`EventStream::quiet_for`].
    Closed,
    /// The stream violates the protocol or a limit, or the proxy denied it.
    Failed(MountError),
}

impl From<Denial> for StreamEnd {
    fn from(denial: Denial) -> Self {
        Self::Failed(MountError::Denied(denial))
    }
}

/// The events of one response.
pub struct EventStream {
    server: Arc<str>,
    client: OwnClient,
    body: AnswerBody,
    input: Bytes,
    reader: EventReader,
    reservation: MessageReservation,
    /// Limit on the time without a received byte; the bytes of comments count. `None` without a
    /// limit.
    quiet: Option<Duration>,
    pace: Pace,
}

impl EventStream {
    fn new(wire: &Wire, body: AnswerBody) -> Self {
        let client = wire.client.clone();
        let most = client.limits().inspect_body_bytes;
        Self {
            reservation: MessageReservation::default(),
            server: Arc::clone(&wire.server),
            client,
            body,
            input: Bytes::new(),
            reader: EventReader::new(most),
            quiet: None,
            pace: Pace::new(MAX_EVENTS),
        }
    }

    /// Returns the event stream in a response. Fails if the status is not 2xx or the media type is
    /// not `text/event-stream`.
    pub fn of(wire: &Wire, answer: Answer) -> Result<Self, MountError> {
        let refusal = match (answer.status, content_type(&answer.headers)) {
            (status, "text/event-stream") if status.is_success() => None,
            (status, kind) if status.is_success() => Some(unknown_type(kind)),
            (status, _) => Some(bad_status(status)),
        };
        if let Some(refusal) = refusal {
            drain(answer.body);
            return Err(refusal);
        }
        Ok(Self::new(wire, answer.body))
    }

    /// Continues with the reader of an earlier connection, after [`EventReader::reconnect`].
    pub fn resumed(mut self, reader: EventReader) -> Self {
        self.reader = reader;
        self
    }

    /// Ends the stream if nothing is received for this long.
    pub fn quiet_for(&mut self, limit: Duration) {
        self.quiet = Some(limit);
    }

    /// The reader, to resume the stream on another connection.
    pub fn into_reader(self) -> EventReader {
        self.reader
    }

    /// The next event. Cancel safe.
    pub async fn next_event(&mut self) -> Result<StreamEvent, StreamEnd> {
        while let Some(pause) = self.pace.pause() {
            sleep(pause).await;
        }
        loop {
            let next = self.reader.next(&mut self.input);
            let next = next.map_err(|error| StreamEnd::Failed(too_long(error.0)))?;
            self.reservation.grow_to(&self.client, self.reader.held())?;
            if let Some(event) = next {
                self.pace.count();
                return Ok(event);
            }
            let chunk = self.body.chunk();
            let chunk = match self.quiet {
                Some(limit) => timeout(limit, chunk).await.map_err(|_| StreamEnd::Closed)?,
                None => chunk.await,
            };
            match chunk {
                Ok(Some(chunk)) => self.input = chunk,
                Ok(None) | Err(BodyError::Peer(_)) => return Err(StreamEnd::Closed),
                Err(BodyError::Denied(denial)) => return Err(denial.into()),
            }
        }
    }

    /// Reads the message of an event; `None` for an event of a type other than `message`.
    pub fn read(&self, event: &StreamEvent) -> Result<Option<Message>, MountError> {
        if !matches!(event.kind.as_str(), "" | "message") {
            return Ok(None);
        }
        let most_values = self.client.limits().inspect_values;
        parse(&self.server, &event.data, most_values).map(Some)
    }

    /// Drops the stream after its last message. The rest is drained, so that the connection can be
    /// reused.
    pub fn drain(self) {
        drain(self.body);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_media_type_is_read_without_parameters_and_is_empty_if_unreadable() {
        each_row(
            [
                (&b"application/json"[..], "application/json"),
                (b"Text/Event-Stream; charset=utf-8", "text/event-stream"),
                (b"Text/HTML;q=1", "Text/HTML"),
                (b"application/json\xff", ""),
            ],
            |(value, expected)| {
                let value = HeaderValue::from_bytes(value).unwrap();
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
                assert_eq!(content_type(&headers), expected);
            },
        );
        assert_eq!(content_type(&HeaderMap::new()), "");
        let error = unknown_type("").to_string();
        assert_eq!(error, "the server answered without a readable Content-Type");
    }
}
