//! A session over HTTP+SSE (2024-11-05): one stream brings everything, and messages are posted to
//! an endpoint that the stream names first.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit};
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::{EventStream, StreamEnd, leave, refused};
use super::peer::{Inbox, Replies};
use super::wire::Wire;
use super::{HttpTransport, cannot_start};
use crate::mcp::event::Events;
use crate::mcp::message::{Id, Message, Outcome, write_request};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::handshake::{Initialized, initialize_params};
use crate::mcp::mounts::{Described, MountError, MountSession, Opening};
use crate::mcp::version::{Era, Version};

/// How long the news that a call was cancelled may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// The longest URL that an endpoint may have.
const MAX_ENDPOINT: usize = 4096;

/// A call that waits for its answer.
struct Waiting {
    events: Events,
    answer: oneshot::Sender<Outcome>,
    /// The token that its progress is told under, as JSON.
    progress: Option<Box<RawValue>>,
}

/// The server's side of a session.
struct Peer {
    wire: Wire,
    /// Where messages are posted.
    path: PathAndQuery,
    inbox: Inbox,
    waiting: Mutex<HashMap<Id, Waiting>>,
    /// Events that have come.
    heard: AtomicU64,
}

/// A session.
pub struct TwoEndpoints {
    peer: Arc<Peer>,
    version: Version,
    described: Described,
    next_id: AtomicU64,
    timeout: Duration,
    transport: HttpTransport,
}

impl Peer {
    async fn post(&self, message: String) -> Result<(), MountError> {
        let posted = self.wire.post(&self.path, HeaderMap::new(), message).await;
        let answer = posted.map_err(MountError::Denied)?;
        let status = answer.status;
        leave(answer);
        if status == StatusCode::NOT_FOUND {
            // It has forgotten the session.
            self.inbox.ended.cancel();
            return Err(MountError::Died { exit: None });
        }
        status
            .is_success()
            .then_some(())
            .ok_or_else(|| refused(status))
    }

    /// Reads the stream until it ends, which ends the session.
    async fn read(self: Arc<Self>, mut stream: EventStream) {
        let reading = async {
            while let Ok(event) = stream.next_event().await {
                self.heard.fetch_add(1, Ordering::Relaxed);
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
        let events = self.reader_of(&message);
        let Some((id, outcome)) = self.inbox.take(message, &events, self) else {
            return;
        };
        let waiting = id.and_then(|id| self.waiting.lock().remove(&id));
        match waiting {
            // Whoever waited may have gone this moment.
            Some(waiting) => drop(waiting.answer.send(outcome)),
            None => self.inbox.drop_one(Reason::UnknownId),
        }
    }

    /// Who gets a message of the server: the call whose progress it tells, or the only one that
    /// waits, where it is of a kind that belongs to calls.
    fn reader_of(&self, message: &Message) -> Events {
        let waiting = self.waiting.lock();
        let mut calls = waiting.values();
        let found = match message {
            Message::Notification { method, params } if &**method == "notifications/progress" => {
                let token = params.as_deref().and_then(progress_token);
                let told = |one: &&Waiting| {
                    let own = one.progress.as_deref().map(RawValue::get);
                    own.is_some() && own == token.as_deref().map(RawValue::get)
                };
                calls.find(told)
            }
            Message::Notification { method, .. } if &**method != "notifications/message" => None,
            Message::Notification { .. } | Message::Request { .. } => {
                calls.next().filter(|_| waiting.len() == 1)
            }
            Message::Response { .. } => None,
        };
        let events = found.map(|call| &call.events);
        events.unwrap_or(&self.inbox.unsolicited).clone()
    }

    /// Sends a request and awaits its answer.
    async fn ask(
        &self,
        id: Id,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
    ) -> Result<Outcome, MountError> {
        let (answer, answered) = oneshot::channel();
        let meta = params.and_then(request_token);
        let waiting = Waiting {
            events,
            answer,
            progress: meta,
        };
        let message = write_request(Some(&id), method, params);
        self.waiting.lock().insert(id.clone(), waiting);
        let _forget = Forget { peer: self, id };
        self.post(message).await?;
        tokio::select! {
            biased;
            outcome = answered => outcome.map_err(|_| MountError::Died { exit: None }),
            () = self.inbox.ended.cancelled() => Err(MountError::Died { exit: None }),
        }
    }
}

/// Forgets a call, however it ends.
struct Forget<'a> {
    peer: &'a Peer,
    id: Id,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.peer.waiting.lock().remove(&self.id);
    }
}

impl Replies for Peer {
    fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // A server that does not take the answer waits for it no longer.
            let _ = self.post(message).await;
        })
    }
}

impl TwoEndpoints {
    /// Opens the stream and shakes hands.
    pub async fn open(
        transport: &HttpTransport,
        opening: &Opening,
    ) -> Result<Arc<Self>, MountError> {
        let wire = transport.wire(opening)?;
        let answer = wire.get(HeaderMap::new()).await.map_err(cannot_start)?;
        let mut stream = EventStream::of(&wire.client, answer)?;
        let path = endpoint(&wire, &mut stream).await?;
        let peer = Arc::new(Peer {
            path,
            inbox: transport.inbox(opening),
            wire,
            waiting: Mutex::default(),
            heard: AtomicU64::new(0),
        });
        let ends_when_dropped = peer.inbox.ended.clone().drop_guard();
        transport.spawn(Arc::clone(&peer).read(stream));
        let version = match opening.version.era() {
            Era::Legacy => opening.version,
            Era::Modern => Version::NEWEST_LEGACY,
        };
        let params = initialize_params(version, &opening.capabilities)?;
        let (events, _no_events) = tokio::sync::mpsc::channel(1);
        let asking = peer.ask(Id::number(0), "initialize", Some(&params), events);
        let result = asking
            .await?
            .map_err(|error| super::refused("initialize", &error.message))?;
        let Initialized { version, described } = Initialized::read(&result)?;
        peer.post(write_request(None, "notifications/initialized", None))
            .await?;
        ends_when_dropped.disarm();
        Ok(Arc::new(Self {
            peer,
            version,
            described,
            next_id: AtomicU64::new(1),
            timeout: transport.timeout(),
            transport: transport.clone(),
        }))
    }

    async fn call(&self, permit: &CallPermit, events: Events) -> Result<Outcome, MountError> {
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut cancel = CancelOnDrop {
            session: self,
            id: Some(id.clone()),
        };
        let (method, params) = (permit.method(), permit.params());
        let asking = self.peer.ask(id, method, params, events);
        let before = self.peer.heard.load(Ordering::Relaxed);
        let Ok(outcome) = timeout(self.timeout, asking).await else {
            let is_silent = self.peer.heard.load(Ordering::Relaxed) == before;
            if is_silent && self.peer.waiting.lock().is_empty() {
                // The stream may have died without a word. Another session tells.
                self.peer.inbox.ended.cancel();
            }
            return Err(MountError::TimedOut);
        };
        cancel.id = None;
        outcome
    }
}

impl MountSession for TwoEndpoints {
    fn version(&self) -> Version {
        self.version
    }

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

impl Drop for TwoEndpoints {
    fn drop(&mut self) {
        self.peer.inbox.ended.cancel();
    }
}

/// Tells the server that nobody waits for a call any more.
struct CancelOnDrop<'a> {
    session: &'a TwoEndpoints,
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
        let message = super::legacy::cancelled(&id);
        self.session.transport.spawn(async move {
            // The server finds out by itself, or works in vain.
            let _ = timeout(FAREWELL, peer.post(message)).await;
        });
    }
}

/// The first event of the stream: where messages are posted.
async fn endpoint(wire: &Wire, stream: &mut EventStream) -> Result<PathAndQuery, MountError> {
    let protocol = |sentence: &str| MountError::Protocol(sentence.to_owned());
    let event = match stream.next_event().await {
        Ok(event) => event,
        Err(StreamEnd::Failed(error)) => return Err(error),
        Err(StreamEnd::Closed) => return Err(protocol("it closed its stream at once")),
    };
    if event.kind != "endpoint" || event.data.len() > MAX_ENDPOINT {
        return Err(protocol("its stream does not begin with an endpoint"));
    }
    let data = std::str::from_utf8(&event.data);
    let data = data.map_err(|_| protocol("its endpoint is no text"))?;
    wire.target.at(data.trim()).map_err(MountError::Protocol)
}

fn progress_token(params: &RawValue) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Progress {
        #[serde(rename = "progressToken")]
        token: Option<Box<RawValue>>,
    }
    let progress: Progress = serde_json::from_str(params.get()).ok()?;
    progress.token
}

/// The token that a request's progress is to be told under.
fn request_token(params: &RawValue) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Option<&'a RawValue>,
    }
    let params: Params<'_> = serde_json::from_str(params.get()).ok()?;
    progress_token(params.meta?)
}
