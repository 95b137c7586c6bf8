//! A session over Streamable HTTP, 2025-03-26 to 2025-11-25.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, Fault};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::{Answered, EventStream, StreamEnd, leave, outcome_of};
use super::event_stream::EventReader;
use super::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use super::peer::{Inbox, Replies};
use super::wire::Wire;
use super::{HttpTransport, cannot_start};
use crate::http::Answer;
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Message, Outcome, write_request};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::handshake::{Initialized, initialize_params};
use crate::mcp::mounts::{Described, MountError, MountSession, Opening};
use crate::mcp::version::Version;

/// How long to wait before a stream is continued, where the server does not say; at least, before
/// the server's own is.
const RECONNECT: Duration = Duration::from_secs(1);
/// How often a stream is asked for again before the next event of it has come.
const TRIES: usize = 3;
/// The longest wait before the server's own stream is asked for again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long a farewell, or the news that a call was cancelled, may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// The longest id of a session.
const MAX_SESSION_ID: usize = 1024;

/// Why a request has no outcome.
pub enum CallError {
    /// The server has forgotten the session, and did not read the request.
    SessionGone,
    Mount(MountError),
}

impl From<MountError> for CallError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

/// The server's side of a session.
pub struct LegacyPeer {
    wire: Wire,
    session: Option<HeaderValue>,
    version: Version,
    inbox: Inbox,
    /// The server has forgotten the session.
    is_forgotten: AtomicBool,
}

/// A session.
pub struct LegacySession {
    peer: Arc<LegacyPeer>,
    described: Described,
    next_id: AtomicU64,
    timeout: Duration,
    /// Opens another session for a call that the server did not read.
    transport: HttpTransport,
    opening: Opening,
    successor: OnceCell<Arc<LegacySession>>,
}

impl LegacyPeer {
    fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        let version = HeaderValue::from_static(self.version.as_str());
        fields.insert(PROTOCOL_VERSION, version);
        if let Some(session) = &self.session {
            fields.insert(SESSION_ID, session.clone());
        }
        fields
    }

    async fn post(&self, message: String) -> Result<Answered, CallError> {
        let path = &self.wire.target.path;
        let answer = self.wire.post(path, self.fields(), message).await;
        let answer = self.known(answer.map_err(MountError::Denied)?)?;
        Ok(Answered::read(&self.wire.client, answer).await?)
    }

    /// An answer of a server that still knows the session.
    fn known(&self, answer: Answer) -> Result<Answer, CallError> {
        if answer.status == StatusCode::NOT_FOUND && self.session.is_some() {
            leave(answer);
            self.is_forgotten.store(true, Ordering::Relaxed);
            self.inbox.ended.cancel();
            return Err(CallError::SessionGone);
        }
        Ok(answer)
    }

    /// Asks for a stream: the one behind an event, or the server's own.
    async fn stream(&self, before: &EventReader) -> Result<EventStream, CallError> {
        let mut fields = self.fields();
        let behind = before.last_event_id().filter(|id| !id.is_empty());
        if let Some(behind) = behind.and_then(|id| HeaderValue::from_bytes(id).ok()) {
            fields.insert(LAST_EVENT_ID, behind);
        }
        let answer = self.wire.get(fields).await.map_err(MountError::Denied)?;
        let answer = self.known(answer)?;
        Ok(EventStream::of(&self.wire.client, answer)?)
    }

    /// Reads the stream of a call until its outcome, over as many connections as it takes.
    async fn follow(
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
                    stream.leave();
                    return Ok(outcome);
                }
                Err(other) => other,
            };
            if self.inbox.take(message, events, self).is_some() {
                self.inbox.drop_one(Reason::UnknownId);
            }
        }
    }

    /// Goes on with the stream of a call, where the server said how.
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
            match self.stream(&reader).await {
                Ok(stream) => return Ok(stream.behind(reader)),
                // It may be back in a moment.
                Err(CallError::Mount(MountError::Denied(denial)))
                    if denial.code().fault() == Fault::Upstream => {}
                Err(error) => return Err(error),
            }
        }
        let sentence = "it closed the stream before it answered";
        Err(MountError::Protocol(sentence.to_owned()).into())
    }

    /// Reads the server's own stream for as long as the session lasts, where the server has one.
    async fn listen(self: &Arc<Self>) {
        let mut reader = EventReader::new(self.wire.client.limits().inspect_body_bytes);
        let mut wait = RECONNECT;
        loop {
            match self.stream(&reader).await {
                Ok(stream) => {
                    let before = reader.last_event_id().map(<[u8]>::to_vec);
                    let had_events;
                    (reader, had_events) = self.read_own(stream.behind(reader)).await;
                    reader.reconnect();
                    if had_events || reader.last_event_id() != before.as_deref() {
                        wait = RECONNECT;
                    }
                    sleep(reader.retry().unwrap_or(wait).max(wait)).await;
                }
                Err(CallError::SessionGone) => return,
                // It has no such stream, or will not have it read.
                Err(CallError::Mount(MountError::Protocol(_))) => return,
                Err(CallError::Mount(_)) => sleep(wait).await,
            }
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    async fn read_own(self: &Arc<Self>, mut stream: EventStream) -> (EventReader, bool) {
        // A connection that died without a word is replaced.
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

    /// Lives as long as the session, and tells the server of its end.
    async fn live(self: Arc<Self>) {
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
        // What belonged to a lease that is over is ended by the appliance itself.
        if let Some(client) = self.wire.client.beyond_lease() {
            let wire = Wire {
                client,
                target: self.wire.target.clone(),
            };
            if let Ok(Ok(answer)) = timeout(FAREWELL, wire.delete(self.fields())).await {
                leave(answer);
            }
        }
    }
}

impl Replies for LegacyPeer {
    fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A server that does not take the answer waits for it no longer.
            let _ = self.post(message).await;
        })
    }
}

impl LegacySession {
    /// Shakes hands. The outer error is the server's own.
    pub async fn open(
        transport: &HttpTransport,
        opening: &Opening,
        version: Version,
    ) -> Result<Result<Arc<Self>, addons::contract::RpcError>, MountError> {
        let wire = transport.wire(opening)?;
        let id = Id::number(0);
        let params = initialize_params(version, &opening.capabilities)?;
        let message = write_request(Some(&id), "initialize", Some(&params));
        let path = wire.target.path.clone();
        let answer = wire.post(&path, HeaderMap::new(), message).await;
        let answer = answer.map_err(cannot_start)?;
        let session = session_id(&answer.headers)?;
        let outcome = match Answered::read(&wire.client, answer).await? {
            Answered::Message(message) => outcome_of(message, &id).ok(),
            Answered::Stream(stream) => first_outcome(stream, &id).await?,
            Answered::Accepted => None,
        };
        let unanswered = || MountError::Protocol("it did not answer initialize".to_owned());
        let result = match outcome.ok_or_else(unanswered)? {
            Ok(result) => result,
            Err(error) => return Ok(Err(error)),
        };
        let Initialized { version, described } = Initialized::read(&result)?;
        let peer = Arc::new(LegacyPeer {
            inbox: transport.inbox(opening),
            wire,
            session,
            version,
            is_forgotten: AtomicBool::new(false),
        });
        let ready = write_request(None, "notifications/initialized", None);
        match peer.post(ready).await {
            Ok(_) => {}
            Err(CallError::SessionGone) => return Err(unanswered()),
            Err(CallError::Mount(error)) => return Err(error),
        }
        transport.spawn(Arc::clone(&peer).live());
        Ok(Ok(Arc::new(Self {
            peer,
            described,
            next_id: AtomicU64::new(1),
            timeout: transport.timeout(),
            transport: transport.clone(),
            opening: opening.clone(),
            successor: OnceCell::new(),
        })))
    }

    async fn call(&self, permit: &CallPermit, events: &Events) -> Result<Outcome, CallError> {
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let message = write_request(Some(&id), permit.method(), permit.params());
        let mut cancel = CancelOnDrop {
            session: self,
            id: Some(id.clone()),
        };
        let outcome = match self.peer.post(message).await? {
            Answered::Message(message) => outcome_of(message, &id).map_err(|message| {
                self.misplaced(&message);
                MountError::Protocol("it answered another request".to_owned()).into()
            }),
            Answered::Stream(stream) => self.peer.follow(stream, &id, events).await,
            Answered::Accepted => Err(MountError::Protocol(
                "it accepted a request without an answer".to_owned(),
            )
            .into()),
        };
        cancel.id = None;
        outcome
    }

    fn misplaced(&self, message: &Message) {
        let is_answer = matches!(message, Message::Response { .. });
        self.peer.inbox.drop_one(if is_answer {
            Reason::UnknownId
        } else {
            Reason::Malformed
        });
    }

    /// Makes a call in another session, where the server has forgotten this one.
    async fn call_again(
        &self,
        permit: &CallPermit,
        events: &Events,
    ) -> Result<Outcome, MountError> {
        let ended = || MountError::Died { exit: None };
        let open = || async {
            let opened = Self::open(&self.transport, &self.opening, self.peer.version).await?;
            opened.map_err(|_refused| ended())
        };
        // Boxed: a call within a call.
        let successor = Box::pin(self.successor.get_or_try_init(open)).await?;
        if successor.peer.version != self.peer.version {
            return Err(ended());
        }
        match Box::pin(successor.call(permit, events)).await {
            Err(CallError::SessionGone) => Err(ended()),
            Err(CallError::Mount(error)) => Err(error),
            Ok(outcome) => Ok(outcome),
        }
    }
}

impl MountSession for LegacySession {
    fn version(&self) -> Version {
        self.peer.version
    }

    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let calling = async {
                let first = tokio::select! {
                    biased;
                    outcome = self.call(&permit, &events) => outcome,
                    () = self.ended().cancelled() => Err(MountError::Died { exit: None }.into()),
                };
                match first {
                    Err(CallError::SessionGone) => self.call_again(&permit, &events).await,
                    Err(CallError::Mount(error)) => Err(error),
                    Ok(outcome) => Ok(outcome),
                }
            };
            let calling = timeout(self.timeout, calling).await;
            calling.unwrap_or(Err(MountError::TimedOut))
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let message = write_request(None, permit.method(), permit.params());
            match timeout(self.timeout, self.peer.post(message)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(CallError::SessionGone)) => Err(MountError::Died { exit: None }),
                Ok(Err(CallError::Mount(error))) => Err(error),
                Err(_elapsed) => Err(MountError::TimedOut),
            }
        })
    }

    fn ended(&self) -> &CancellationToken {
        &self.peer.inbox.ended
    }
}

impl Drop for LegacySession {
    fn drop(&mut self) {
        self.peer.inbox.ended.cancel();
    }
}

/// Tells the server that nobody waits for a call any more.
struct CancelOnDrop<'a> {
    session: &'a LegacySession,
    /// The call, until it is answered.
    id: Option<Id>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self
            .id
            .take()
            .filter(|_| !self.session.ended().is_cancelled())
        else {
            return;
        };
        let peer = Arc::clone(&self.session.peer);
        let message = cancelled(&id);
        self.session.transport.spawn(async move {
            // The server finds out by itself, or works in vain.
            let _ = timeout(FAREWELL, peer.post(message)).await;
        });
    }
}

/// The notification that nobody waits for a call any more.
pub fn cancelled(id: &Id) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\
         \"params\":{{\"requestId\":{id}}}}}"
    )
}

/// The id that a server gives to a session.
fn session_id(headers: &HeaderMap) -> Result<Option<HeaderValue>, MountError> {
    let Some(id) = headers.get(SESSION_ID) else {
        return Ok(None);
    };
    let is_visible = id
        .as_bytes()
        .iter()
        .all(|byte| (0x21..=0x7e).contains(byte));
    if !is_visible || id.is_empty() || id.len() > MAX_SESSION_ID {
        let sentence = "it gave the session an id that is empty, too long or not visible ASCII";
        return Err(MountError::Protocol(sentence.to_owned()));
    }
    let mut id = id.clone();
    id.set_sensitive(true);
    Ok(Some(id))
}

/// The outcome of a request before there is a session.
pub async fn first_outcome(
    mut stream: Box<EventStream>,
    id: &Id,
) -> Result<Option<Outcome>, MountError> {
    loop {
        let event = match stream.next_event().await {
            Ok(event) => event,
            Err(StreamEnd::Closed) => return Ok(None),
            Err(StreamEnd::Failed(error)) => return Err(error),
        };
        if let Some(message) = stream.read(&event)?
            && let Ok(outcome) = outcome_of(message, id)
        {
            stream.leave();
            return Ok(Some(outcome));
        }
    }
}
