//! A session over HTTP+SSE (2024-11-05): one stream carries all messages of the server; the gateway
//! posts its messages to the endpoint that the first event names.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, Denial};
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer::{EventStream, StreamEnd, bad_status};
use super::drain::drain;
use super::peer::{CancelOnDrop, Inbox, Replies};
use super::wire::Wire;
use super::{HttpTransport, cannot_start};
use crate::http::Answer;
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Message, Outcome, write_request};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::handshake::{initialize_params, read_initialized, refused};
use crate::mcp::mounts::related::Related;
use crate::mcp::mounts::{
    Described, MessageMemory, MessageReservation, MountError, MountSession, Opening,
};
use crate::mcp::version::Version;

/// The longest URL of an endpoint, in bytes.
const MAX_ENDPOINT: usize = 4096;
/// Bound on the time between the start of the caller's timer and the start of the call.
const EARLIER: Duration = Duration::from_millis(100);

/// A request that waits for its response.
struct Waiting {
    events: Events,
    /// Takes the outcome and its memory.
    answer: oneshot::Sender<Result<(Outcome, MessageReservation), Denial>>,
    /// The progress token of the request, as JSON.
    progress: Option<Box<str>>,
}

/// The server of one session. Sends messages to the server, and dispatches the messages of the
/// server.
struct Peer {
    wire: Wire,
    /// The path to which messages are posted, as the server named it.
    path: PathAndQuery,
    /// The path to which the server redirected the first message; [`Self::path`] if it did not.
    final_path: OnceLock<PathAndQuery>,
    inbox: Inbox,
    /// Whether all containers share the session.
    is_shared: bool,
    waiting: Mutex<HashMap<Id, Waiting>>,
    /// Number of events received. If none arrives before a call times out, the stream may be dead.
    events_received: AtomicU64,
}

/// A session over HTTP+SSE.
pub struct HttpSseSession {
    peer: Arc<Peer>,
    described: Described,
    next_id: AtomicU64,
    timeout: Duration,
    transport: HttpTransport,
    _ends_when_dropped: DropGuard,
}

impl Peer {
    async fn post(&self, message: String) -> Result<(), MountError> {
        let path = self.final_path.get().unwrap_or(&self.path);
        let posted = self.wire.post(path, HeaderMap::new(), message).await;
        self.posted(posted)
    }

    async fn post_first(&self, message: String) -> Result<(), MountError> {
        let mut path = self.path.clone();
        let posting = self.wire.post_first(&mut path, HeaderMap::new(), message);
        let posted = posting.await;
        let _ = self.final_path.set(path);
        self.posted(posted)
    }

    fn posted(&self, posted: Result<Answer, Denial>) -> Result<(), MountError> {
        let answer = posted.map_err(MountError::Denied)?;
        let status = answer.status;
        drain(answer.body);
        if status == StatusCode::NOT_FOUND {
            // The server has forgotten the session.
            self.inbox.ended.cancel();
            return Err(MountError::Died { exit: None });
        }
        status
            .is_success()
            .then_some(())
            .ok_or_else(|| bad_status(status))
    }

    /// Reads the stream until it ends, which ends the session.
    async fn read(self: Arc<Self>, mut stream: EventStream) {
        let reading = async {
            while let Ok(event) = stream.next_event().await {
                self.events_received.fetch_add(1, Ordering::Relaxed);
                match stream.read(&event) {
                    Ok(Some(message)) => self.take(message),
                    Ok(None) => {}
                    Err(_) => self.inbox.drop_one(Reason::Malformed),
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = self.inbox.ended.cancelled() => {}
        }
        self.inbox.ended.cancel();
        self.waiting.lock().clear();
    }

    fn take(self: &Arc<Self>, message: Message) {
        let events = self.queue_for(&message);
        let Some((id, outcome)) = self.inbox.take(message, &events, self) else {
            return;
        };
        let waiting = id.and_then(|id| self.waiting.lock().remove(&id));
        match waiting {
            // The caller may have stopped waiting.
            Some(waiting) => drop(waiting.answer.send(waiting.events.hold(outcome))),
            None => self.inbox.drop_one(Reason::UnknownId),
        }
    }

    /// The queue for a message. Progress goes to the call with the same progress token. A log
    /// message or a request goes to the call under way, if there is only one and the session is not
    /// shared. Other messages go to `unsolicited`.
    fn queue_for(&self, message: &Message) -> Events {
        let waiting = self.waiting.lock();
        let mut calls = waiting.values();
        let found = match message {
            Message::Notification { method, params } if &**method == "notifications/progress" => {
                let token = Related::read(params.as_deref()).progress.map(RawValue::get);
                calls.find(|call| token.is_some() && call.progress.as_deref() == token)
            }
            Message::Notification { method, .. } if &**method != "notifications/message" => None,
            // The message may belong to a call of another container.
            Message::Notification { .. } | Message::Request { .. } if self.is_shared => None,
            Message::Notification { .. } | Message::Request { .. } => {
                calls.next().filter(|_| waiting.len() == 1)
            }
            Message::Response { .. } => None,
        };
        let events = found.map(|call| &call.events);
        events.unwrap_or(&self.inbox.unsolicited).clone()
    }

    /// Sends a request and awaits its outcome.
    async fn ask(
        &self,
        id: Id,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
    ) -> Result<Outcome, MountError> {
        let (answer, answered) = oneshot::channel();
        let progress = Related::read(params).meta.progress;
        let waiting = Waiting {
            events,
            answer,
            progress: progress.map(|token| token.get().into()),
        };
        let message = write_request(Some(&id), method, params);
        self.waiting.lock().insert(id.clone(), waiting);
        let _removed = RemoveOnDrop { peer: self, id };
        match method {
            "initialize" => self.post_first(message).await?,
            _ => self.post(message).await?,
        }
        tokio::select! {
            biased;
            held = answered => match held {
                Ok(Ok((outcome, _memory))) => Ok(outcome),
                Ok(Err(denial)) => Err(MountError::Denied(denial)),
                Err(_gone) => Err(MountError::Died { exit: None }),
            },
            () = self.inbox.ended.cancelled() => Err(MountError::Died { exit: None }),
        }
    }
}

/// Removes a call from `waiting` on drop.
struct RemoveOnDrop<'a> {
    peer: &'a Peer,
    id: Id,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.peer.waiting.lock().remove(&self.id);
    }
}

/// Guard of a call. Ends the session if its stream may have died silently: the guard is dropped
/// after the call's `timeout`, no event arrived during the call, and no other call waits. The next
/// call then opens another session.
struct EndSilentOnDrop<'a> {
    peer: &'a Peer,
    timeout: Duration,
    begun: Instant,
    received_before: u64,
}

impl<'a> EndSilentOnDrop<'a> {
    fn of(peer: &'a Peer, timeout: Duration) -> Self {
        Self {
            peer,
            timeout,
            begun: Instant::now(),
            received_before: peer.events_received.load(Ordering::Relaxed),
        }
    }
}

impl Drop for EndSilentOnDrop<'_> {
    fn drop(&mut self) {
        // The caller's timer, whose expiry drops the call, started a moment before `begun`.
        let waited = self.begun.elapsed().saturating_add(EARLIER);
        let received = self.peer.events_received.load(Ordering::Relaxed);
        let is_silent = waited >= self.timeout && received == self.received_before;
        if is_silent && self.peer.waiting.lock().is_empty() {
            self.peer.inbox.ended.cancel();
        }
    }
}

impl Replies for Peer {
    fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A server that refuses the answer does not wait for it.
            let _ = self.post(message).await;
        })
    }

    fn memory(&self) -> &dyn MessageMemory {
        &self.wire.client
    }
}

impl HttpSseSession {
    /// Opens the stream, and a session with `initialize`.
    pub async fn open(
        transport: &HttpTransport,
        opening: &Opening,
    ) -> Result<Arc<Self>, MountError> {
        let wire = transport.wire(opening)?;
        let answer = wire.get_first().await.map_err(cannot_start)?;
        let mut stream = EventStream::of(&wire, answer)?;
        // Clients read the endpoint relative to the configured URL, also after a redirect.
        let path = endpoint(&wire, &mut stream).await?;
        let peer = Arc::new(Peer {
            path,
            final_path: OnceLock::new(),
            inbox: transport.inbox(opening),
            is_shared: opening.container.is_none(),
            wire,
            waiting: Mutex::default(),
            events_received: AtomicU64::new(0),
        });
        let ends_when_dropped = peer.inbox.ended.clone().drop_guard();
        transport.spawn(Arc::clone(&peer).read(stream));
        let version = opening.version.min(Version::NEWEST_LEGACY);
        let params = initialize_params(version, &opening.capabilities)?;
        let asking = peer.ask(Id::number(0), "initialize", Some(&params), Events::none());
        let result = asking.await?;
        let result = result.map_err(|error| refused("initialize", &error))?;
        let described = read_initialized(&peer.inbox.server, &result)?;
        peer.post(write_request(None, "notifications/initialized", None))
            .await?;
        Ok(Arc::new(Self {
            peer,
            described,
            next_id: AtomicU64::new(1),
            timeout: transport.timeout(),
            transport: transport.clone(),
            _ends_when_dropped: ends_when_dropped,
        }))
    }

    async fn call(&self, permit: &CallPermit, events: Events) -> Result<Outcome, MountError> {
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut cancel = CancelOnDrop::of(&self.peer, self.ended(), &self.transport, &id);
        let _ends_silent_session = EndSilentOnDrop::of(&self.peer, self.timeout);
        let (method, params) = (permit.method(), permit.params());
        let outcome = self.peer.ask(id, method, params, events).await;
        cancel.disarm();
        outcome
    }
}

impl MountSession for HttpSseSession {
    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move { self.call(&permit, events).await })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let message = write_request(None, permit.method(), permit.params());
            let posted = timeout(self.timeout, self.peer.post(message)).await;
            posted.unwrap_or(Err(MountError::TimedOut))
        })
    }

    fn ended(&self) -> &CancellationToken {
        &self.peer.inbox.ended
    }
}

/// Reads the first event of the stream, which names the path to which messages are posted.
async fn endpoint(wire: &Wire, stream: &mut EventStream) -> Result<PathAndQuery, MountError> {
    let protocol = |sentence: &str| MountError::Protocol(sentence.to_owned());
    let event = match stream.next_event().await {
        Ok(event) => event,
        Err(StreamEnd::Failed(error)) => return Err(error),
        Err(StreamEnd::Closed) => return Err(protocol("the server closed its stream at once")),
    };
    if event.kind != "endpoint" || event.data.len() > MAX_ENDPOINT {
        return Err(protocol(
            "the server's stream does not begin with an endpoint event of at most 4096 bytes",
        ));
    }
    let data = std::str::from_utf8(&event.data);
    let data = data.map_err(|_| protocol("the server's endpoint is not UTF-8"))?;
    wire.target.at(data.trim()).map_err(MountError::Protocol)
}
