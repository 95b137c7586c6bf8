//! Sends messages in a session over Streamable HTTP (2025-03-26 to 2025-11-25), and reads the
//! server's streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, Fault};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::{sleep, timeout};

use super::answer::{Answered, EventStream, StreamEnd, outcome_of, read_accepted};
use super::drain::drain;
use super::event_stream::EventReader;
use super::headers::TYPICAL_FIELDS;
use super::peer::{Inbox, Replies, TEARDOWN_TIMEOUT};
use super::wire::Wire;
use crate::http::Answer;
use crate::mcp::event::Events;
use crate::mcp::fields::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::message::{Id, Outcome};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::{MessageMemory, MountError};
use crate::mcp::version::Version;

/// Delay before a stream is resumed, unless the server sets one; also the shortest delay before the
/// standalone GET stream is requested again.
const RECONNECT: Duration = Duration::from_secs(1);
/// The most attempts to resume the stream of a call without an event in between.
const TRIES: usize = 3;
/// The longest delay before the standalone GET stream is requested again, unless the server sets a
/// longer one.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Why a request has no outcome.
pub enum CallError {
    /// The server has forgotten the session, and did not process the request.
    SessionGone,
    Mount(MountError),
}

impl From<MountError> for CallError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

impl From<CallError> for MountError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::SessionGone => Self::Died { exit: None },
            CallError::Mount(error) => error,
        }
    }
}

/// The server of one session. Sends messages to the server, and dispatches the messages of the
/// server.
pub struct LegacyPeer {
    wire: Wire,
    session: Option<HeaderValue>,
    pub version: Version,
    pub inbox: Inbox,
    /// Whether the server has forgotten the session.
    is_forgotten: AtomicBool,
}

impl LegacyPeer {
    pub fn new(wire: Wire, session: Option<HeaderValue>, version: Version, inbox: Inbox) -> Self {
        Self {
            wire,
            session,
            version,
            inbox,
            is_forgotten: AtomicBool::new(false),
        }
    }

    fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::with_capacity(TYPICAL_FIELDS);
        let version = HeaderValue::from_static(self.version.as_str());
        fields.insert(PROTOCOL_VERSION, version);
        if let Some(session) = &self.session {
            fields.insert(SESSION_ID, session.clone());
        }
        fields
    }

    /// Posts a message and reads the response. Fails with [`CallError::SessionGone`] if the server
    /// has forgotten the session.
    pub async fn post(&self, message: String) -> Result<Answered, CallError> {
        let path = &self.wire.target.path;
        let answer = self.wire.post(path, self.fields(), message).await;
        let answer = self.check_session(answer.map_err(MountError::Denied)?)?;
        Ok(Answered::read(&self.wire, answer).await?)
    }

    /// Posts a notification or an answer of the client, as [`LegacyPeer::post`] posts a request.
    pub async fn tell(&self, message: String) -> Result<(), CallError> {
        let path = &self.wire.target.path;
        let answer = self.wire.post(path, self.fields(), message).await;
        let answer = self.check_session(answer.map_err(MountError::Denied)?)?;
        Ok(read_accepted(&self.wire, answer).await?)
    }

    /// Returns the response. If its status says that the server has forgotten the session (404),
    /// ends the session and fails with [`CallError::SessionGone`].
    fn check_session(&self, answer: Answer) -> Result<Answer, CallError> {
        if answer.status == StatusCode::NOT_FOUND && self.session.is_some() {
            drain(answer.body);
            self.is_forgotten.store(true, Ordering::Relaxed);
            self.inbox.ended.cancel();
            return Err(CallError::SessionGone);
        }
        Ok(answer)
    }

    /// Requests a stream with GET. If the reader has an event id, requests the continuation of a
    /// stream after that event. Otherwise, requests the standalone stream. `is_offered`: the server
    /// is known to have such streams. Otherwise, status 404 does not mean that the server has
    /// forgotten the session: some servers send it instead of 405.
    async fn stream(
        &self,
        before: &EventReader,
        is_offered: bool,
    ) -> Result<EventStream, CallError> {
        let mut fields = self.fields();
        let last_id = before.last_event_id().filter(|id| !id.is_empty());
        if let Some(last_id) = last_id.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            fields.insert(LAST_EVENT_ID, last_id);
        }
        let answer = self.wire.get(fields).await;
        let mut answer = answer.map_err(MountError::Denied)?;
        if is_offered {
            answer = self.check_session(answer)?;
        }
        Ok(EventStream::of(&self.wire, answer)?)
    }

    /// Reads the stream of a call until its outcome; resumes it if the connection breaks.
    pub async fn follow(
        self: &Arc<Self>,
        mut stream: Box<EventStream>,
        id: &Id,
        events: &Events,
    ) -> Result<Outcome, CallError> {
        let mut tries = TRIES;
        loop {
            let event = match stream.next_event().await {
                Ok(event) => event,
                Err(StreamEnd::Failed(error)) => return Err(error.into()),
                Err(StreamEnd::Closed) => {
                    *stream = self.resume(stream.into_reader(), &mut tries).await?;
                    continue;
                }
            };
            tries = TRIES;
            let Some(message) = stream.read(&event)? else {
                continue;
            };
            let message = match outcome_of(message, id) {
                Ok(outcome) => {
                    stream.drain();
                    return Ok(outcome);
                }
                Err(other) => other,
            };
            if self.inbox.take(message, events, self).is_some() {
                self.inbox.drop_one(Reason::UnknownId);
            }
        }
    }

    /// Resumes the stream of a call. Fails if the server sent no event id or refuses the request,
    /// and after [`TRIES`] attempts.
    async fn resume(
        &self,
        mut reader: EventReader,
        tries: &mut usize,
    ) -> Result<EventStream, CallError> {
        let is_resumable = reader.last_event_id().is_some_and(|id| !id.is_empty());
        while is_resumable && *tries > 0 {
            *tries = tries.saturating_sub(1);
            sleep(reader.retry().unwrap_or(RECONNECT)).await;
            reader.reconnect();
            match self.stream(&reader, true).await {
                Ok(stream) => return Ok(stream.resumed(reader)),
                // The server may be restarting.
                Err(CallError::Mount(MountError::Denied(denial)))
                    if denial.code().fault() == Fault::Upstream => {}
                Err(error) => return Err(error),
            }
        }
        let sentence = "the server closed the stream before it answered";
        Err(MountError::Protocol(sentence.to_owned()).into())
    }

    /// Reads the standalone GET stream while the session lasts, if the server offers one.
    async fn listen(self: &Arc<Self>) {
        let mut reader = EventReader::new(self.wire.client.limits().inspect_body_bytes);
        let mut wait = RECONNECT;
        let mut is_offered = false;
        loop {
            match self.stream(&reader, is_offered).await {
                Ok(stream) => {
                    is_offered = true;
                    let before = reader.last_event_id().map(<[u8]>::to_vec);
                    let had_events;
                    (reader, had_events) = self.read_standalone(stream.resumed(reader)).await;
                    reader.reconnect();
                    if had_events || reader.last_event_id() != before.as_deref() {
                        wait = RECONNECT;
                    }
                    sleep(reader.retry().unwrap_or(wait).max(wait)).await;
                }
                Err(CallError::SessionGone) => return,
                // The server refuses the first attempt, so it offers no such stream.
                Err(CallError::Mount(MountError::Protocol(_))) if !is_offered => return,
                // The server may be restarting.
                Err(CallError::Mount(_)) => sleep(wait).await,
            }
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    /// Reads the standalone GET stream until it ends or fails. Returns its reader, and whether
    /// there were events.
    async fn read_standalone(self: &Arc<Self>, mut stream: EventStream) -> (EventReader, bool) {
        // Ends a connection that died silently; `listen` opens another one.
        stream.quiet_for(self.wire.client.idle_timeout());
        let mut had_events = false;
        while let Ok(event) = stream.next_event().await {
            had_events = true;
            let message = match stream.read(&event) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(_) => {
                    self.inbox.drop_one(Reason::Malformed);
                    continue;
                }
            };
            if self
                .inbox
                .take(message, &self.inbox.unsolicited, self)
                .is_some()
            {
                self.inbox.drop_one(Reason::UnknownId);
            }
        }
        (stream.into_reader(), had_events)
    }

    /// Reads the standalone GET stream until the session ends, and then deletes the session.
    pub async fn run(self: Arc<Self>) {
        tokio::select! {
            () = self.inbox.ended.cancelled() => {}
            () = self.wire.client.ended() => {}
            () = async {
                self.listen().await;
                std::future::pending().await
            } => {}
        }
        self.inbox.ended.cancel();
        if self.session.is_none() || self.is_forgotten.load(Ordering::Relaxed) {
            return;
        }
        // After the end of its lease, the session is deleted on behalf of the proxy itself.
        if let Some(client) = self.wire.client.beyond_lease() {
            let wire = Wire {
                client,
                ..self.wire.clone()
            };
            if let Ok(Ok(answer)) = timeout(TEARDOWN_TIMEOUT, wire.delete(self.fields())).await {
                drain(answer.body);
            }
        }
    }
}

impl Replies for LegacyPeer {
    fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A server that refuses the answer does not wait for it.
            let _ = self.tell(message).await;
        })
    }

    fn memory(&self) -> &dyn MessageMemory {
        &self.wire.client
    }
}
