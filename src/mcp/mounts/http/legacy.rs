//! A session over Streamable HTTP, 2025-03-26 to 2025-11-25.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use addons::contract::{BoxFuture, CallPermit, RpcError};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer::{Answered, EventStream, StreamEnd, outcome_of};
use super::legacy_peer::{CallError, LegacyPeer};
use super::peer::CancelOnDrop;
use super::{HttpTransport, cannot_start};
use crate::mcp::event::Events;
use crate::mcp::fields::SESSION_ID;
use crate::mcp::message::{Id, Message, Outcome, write_request};
use crate::mcp::mounts::dropped::Reason;
use crate::mcp::mounts::handshake::{initialize_params, read_initialized};
use crate::mcp::mounts::{Described, MountError, MountSession, Opening};
use crate::mcp::version::Version;

/// The longest session id, in bytes.
const MAX_SESSION_ID: usize = 1024;

/// Why no session was opened.
pub enum NotOpened {
    /// The server answered `initialize` with a JSON-RPC error.
    Refused(RpcError),
    /// The server answered POST with 400, 404 or 405 and no JSON-RPC error, as servers of HTTP+SSE
    /// (2024-11-05) do.
    NoEndpoint(MountError),
    /// Another failure.
    Failed(MountError),
}

impl NotOpened {
    fn after(status: StatusCode, error: MountError) -> Self {
        match (status.as_u16(), error) {
            (400 | 404 | 405, error @ MountError::Protocol(_)) => Self::NoEndpoint(error),
            (_, error) => Self::Failed(error),
        }
    }
}

impl From<MountError> for NotOpened {
    fn from(error: MountError) -> Self {
        Self::Failed(error)
    }
}

/// A session with a legacy server.
pub struct LegacySession {
    peer: Arc<LegacyPeer>,
    described: Described,
    next_id: AtomicU64,
    timeout: Duration,
    /// Opens another session for a call if the server has forgotten this one.
    transport: HttpTransport,
    opening: Opening,
    successor: OnceCell<Arc<LegacySession>>,
    _ends_when_dropped: DropGuard,
}

impl LegacySession {
    /// Opens a session with `initialize`.
    pub async fn open(
        transport: &HttpTransport,
        opening: &Opening,
        version: Version,
    ) -> Result<Arc<Self>, NotOpened> {
        let mut wire = transport.wire(opening)?;
        let id = Id::number(0);
        let params = initialize_params(version, &opening.capabilities)?;
        let message = write_request(Some(&id), "initialize", Some(&params));
        let mut path = wire.target.path.clone();
        let answer = wire.post_first(&mut path, HeaderMap::new(), message).await;
        wire.target.path = path;
        let answer = answer.map_err(cannot_start)?;
        let (session, status) = (session_id(&answer.headers)?, answer.status);
        let answered = Answered::read(&wire, answer).await;
        let outcome = match answered.map_err(|error| NotOpened::after(status, error))? {
            Answered::Message(message) => outcome_of(message, &id).ok(),
            Answered::Stream(stream) => first_outcome(stream, &id).await?,
            Answered::Accepted => None,
        };
        let unanswered = || MountError::Protocol("the server did not answer initialize".to_owned());
        let result = outcome.ok_or_else(unanswered)?;
        let result = result.map_err(NotOpened::Refused)?;
        let described = read_initialized(&wire.server, &result)?;
        let inbox = transport.inbox(opening);
        let peer = LegacyPeer::new(wire, session, described.version, inbox);
        let peer = Arc::new(peer);
        let ready = write_request(None, "notifications/initialized", None);
        match peer.tell(ready).await {
            Ok(()) => {}
            Err(CallError::SessionGone) => return Err(unanswered().into()),
            Err(CallError::Mount(error)) => return Err(error.into()),
        }
        transport.spawn(Arc::clone(&peer).run());
        Ok(Arc::new(Self {
            _ends_when_dropped: peer.inbox.ended.clone().drop_guard(),
            peer,
            described,
            next_id: AtomicU64::new(1),
            timeout: transport.timeout(),
            transport: transport.clone(),
            opening: opening.clone(),
            successor: OnceCell::new(),
        }))
    }

    async fn call(&self, permit: &CallPermit, events: &Events) -> Result<Outcome, CallError> {
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let message = write_request(Some(&id), permit.method(), permit.params());
        let mut cancel = CancelOnDrop::of(&self.peer, self.ended(), &self.transport, &id);
        let posted = self.peer.post(message).await;
        let answered = posted.inspect_err(|_unanswered| cancel.disarm())?;
        let outcome = match answered {
            Answered::Message(message) => outcome_of(message, &id).map_err(|message| {
                self.misplaced(&message);
                MountError::Protocol("the server's answer is for another request".to_owned()).into()
            }),
            Answered::Stream(stream) => self.peer.follow(stream, &id, events).await,
            Answered::Accepted => Err(MountError::Protocol(
                "the server accepted a request without a response to it".to_owned(),
            )
            .into()),
        };
        cancel.disarm();
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

    /// Repeats a call in another session, after the server has forgotten this one. Denies the call
    /// if the container's level has risen or its abort latch was set meanwhile.
    async fn call_again(
        &self,
        permit: &CallPermit,
        events: &Events,
    ) -> Result<Outcome, MountError> {
        let ended = || MountError::Died { exit: None };
        let open = || async {
            let opened = Self::open(&self.transport, &self.opening, self.peer.version).await;
            opened.map_err(|why| match why {
                NotOpened::Refused(_) => ended(),
                NotOpened::NoEndpoint(error) | NotOpened::Failed(error) => error,
            })
        };
        // Boxed, so that the future of every request does not include this rare path.
        let successor = Box::pin(self.successor.get_or_try_init(open)).await?;
        if successor.peer.version != self.peer.version {
            return Err(ended());
        }
        permit.may_repeat().map_err(MountError::Denied)?;
        let called = Box::pin(successor.call(permit, events)).await;
        called.map_err(MountError::from)
    }
}

impl MountSession for LegacySession {
    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            let first = tokio::select! {
                biased;
                outcome = self.call(&permit, &events) => outcome,
                () = self.ended().cancelled() => Err(MountError::Died { exit: None }.into()),
            };
            match first {
                Err(CallError::SessionGone) => self.call_again(&permit, &events).await,
                other => other.map_err(MountError::from),
            }
        })
    }

    fn notify<'a>(&'a self, permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async move {
            let message = write_request(None, permit.method(), permit.params());
            let posted = timeout(self.timeout, self.peer.tell(message)).await;
            posted.map_err(|_elapsed| MountError::TimedOut)??;
            Ok(())
        })
    }

    fn ended(&self) -> &CancellationToken {
        &self.peer.inbox.ended
    }
}

/// Reads the session id that a server assigned; `None` if it assigned none.
fn session_id(headers: &HeaderMap) -> Result<Option<HeaderValue>, MountError> {
    let Some(id) = headers.get(SESSION_ID) else {
        return Ok(None);
    };
    let is_visible = id
        .as_bytes()
        .iter()
        .all(|byte| (0x21..=0x7e).contains(byte));
    if !is_visible || id.is_empty() || id.len() > MAX_SESSION_ID {
        let sentence =
            "the server assigned a session id that is empty, too long or not visible ASCII";
        return Err(MountError::Protocol(sentence.to_owned()));
    }
    let mut id = id.clone();
    id.set_sensitive(true);
    Ok(Some(id))
}

/// Reads a stream up to the outcome of a request of the handshake; `None` if the stream ends
/// without the outcome. Drops all other messages.
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
            stream.drain();
            return Ok(Some(outcome));
        }
    }
}
