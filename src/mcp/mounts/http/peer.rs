//! Dispatches notifications of servers over HTTP, and requests of legacy servers.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::HttpTransport;
use crate::mcp::error::rpc_error;
use crate::mcp::event::{Event, Events, Params};
use crate::mcp::message::{Id, Message, Outcome, write_request, write_response};
use crate::mcp::mounts::dropped::{Dropped, Reason};
use crate::mcp::mounts::{List, MessageMemory, MessageReservation, Opening, error};

/// The key of the subscription id in the `_meta` of a notification.
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The most requests of the server in one session that may wait for an answer. Further ones are
/// dropped.
const MAX_REQUESTS: usize = 64;

/// Time limit for informing a server that a session or a call has ended.
pub const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a message back to the server.
pub trait Replies: Send + Sync + 'static {
    /// Sends one message. Returns once the server has answered the POST or could not be reached.
    fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()>;

    /// The memory that an answer of a client is charged to until it has been sent.
    fn memory(&self) -> &dyn MessageMemory;
}

/// Guard of a call. Dropping the guard cancels the call at the server, unless the guard was
/// disarmed or the session has ended.
pub struct CancelOnDrop<'a, P: Replies> {
    peer: &'a Arc<P>,
    session_ended: &'a CancellationToken,
    transport: &'a HttpTransport,
    /// The id of the call; `None` if the guard was disarmed.
    id: Option<Id>,
}

impl<'a, P: Replies> CancelOnDrop<'a, P> {
    pub fn of(
        peer: &'a Arc<P>,
        session_ended: &'a CancellationToken,
        transport: &'a HttpTransport,
        id: &Id,
    ) -> Self {
        Self {
            peer,
            session_ended,
            transport,
            id: Some(id.clone()),
        }
    }

    /// Disarms the guard: the call was answered or has failed.
    pub fn disarm(&mut self) {
        self.id = None;
    }
}

impl<P: Replies> Drop for CancelOnDrop<'_, P> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        if self.session_ended.is_cancelled() {
            return;
        }
        let params = RawValue::from_string(format!("{{\"requestId\":{id}}}")).ok();
        let message = write_request(None, "notifications/cancelled", params.as_deref());
        let cancelling = timeout(TEARDOWN_TIMEOUT, Arc::clone(self.peer).reply(message));
        self.transport.spawn(async {
            // If the cancellation fails, the server finishes a call whose response is dropped.
            let _ = cancelling.await;
        });
    }
}

/// Dispatches the messages of one session.
pub struct Inbox {
    /// The server's name, for the log.
    pub server: Arc<str>,
    /// Takes messages that belong to no call.
    pub unsolicited: Events,
    /// Cancelled when the session has ended. Cancelling it ends the session.
    pub ended: CancellationToken,
    requests: Arc<Semaphore>,
    dropped: Dropped,
}

impl Inbox {
    pub fn new(server: &Arc<str>, dropped: &Dropped, opening: &Opening) -> Self {
        Self {
            server: Arc::clone(server),
            unsolicited: opening.unsolicited.clone(),
            ended: opening.ended(),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            dropped: dropped.clone(),
        }
    }

    /// Counts a dropped message.
    pub fn drop_one(&self, reason: Reason) {
        self.dropped.count(reason);
        tracing::debug!(server = %self.server, ?reason, "a message of an MCP server was dropped");
    }

    /// Relays a notification to `events`; drops the notification if the queue refuses it. A change
    /// of a list concerns the whole session and therefore goes to `unsolicited`, unless the
    /// notification names a subscription.
    pub fn notification(&self, method: Arc<str>, params: Option<Box<RawValue>>, events: &Events) {
        let params_text = params.as_deref().map_or("", RawValue::get);
        let is_subscribed = params_text.contains(SUBSCRIPTION_ID);
        let events = match List::of_notification(&method) {
            Some(_) if !is_subscribed => &self.unsolicited,
            _ => events,
        };
        let params = params.map(Params::from);
        let event = Event::Notification { method, params };
        if events.try_send(event).is_err() {
            self.drop_one(Reason::QueueFull);
        }
    }

    /// Relays a notification or a request to `events`, and answers `ping`. The answer to a request
    /// is sent through `replies` in the background. Returns a response, which the caller has to
    /// match with its request.
    pub fn take<R: Replies>(
        &self,
        message: Message,
        events: &Events,
        replies: &Arc<R>,
    ) -> Option<(Option<Id>, Outcome)> {
        match message {
            Message::Response { id, outcome } => return Some((id, outcome)),
            Message::Notification { method, params } => self.notification(method, params, events),
            Message::Request { id, method, params } => {
                self.request(id, method, params, events, replies);
            }
        }
        None
    }

    fn request<R: Replies>(
        &self,
        id: Id,
        method: Arc<str>,
        params: Option<Box<RawValue>>,
        events: &Events,
        replies: &Arc<R>,
    ) {
        let Ok(place) = Arc::clone(&self.requests).try_acquire_owned() else {
            self.drop_one(Reason::QueueFull);
            return;
        };
        let (reply, answer) = oneshot::channel();
        if &*method == "ping" {
            let _ = reply.send(empty());
        } else {
            let request = Event::Request {
                method,
                params: params.map(Params::from),
                reply,
            };
            // If the queue is closed, `reply` is dropped, and the task below answers with
            // `nobody_answers`.
            if let Err(TrySendError::Full(Event::Request { reply, .. })) = events.try_send(request)
            {
                self.drop_one(Reason::QueueFull);
                let _ = reply.send(Err(error::busy()));
            }
        }
        let (replies, ended) = (Arc::clone(replies), self.ended.clone());
        tokio::spawn(async move {
            let _place = place;
            let answering = async {
                let outcome = answer.await;
                let outcome = outcome.unwrap_or_else(|_| Err(error::nobody_answers()));
                let (message, _charge) = charged(&id, outcome, replies.memory());
                replies.reply(message).await;
            };
            tokio::select! {
                () = answering => {}
                () = ended.cancelled() => {}
            }
        });
    }
}

/// Encodes the answer to a request of the server, and charges it to `memory`: a server that takes
/// answers slowly must not make the proxy hold many long ones. If memory is exhausted, the server
/// gets an error instead.
fn charged(id: &Id, outcome: Outcome, memory: &dyn MessageMemory) -> (String, MessageReservation) {
    let mut charge = MessageReservation::default();
    let message = write_response(Some(id), &outcome);
    match charge.grow_to(memory, message.len()) {
        Ok(()) => (message, charge),
        Err(denial) => {
            let refusal = write_response(Some(id), &Err(rpc_error(&denial)));
            (refusal, MessageReservation::default())
        }
    }
}

fn empty() -> Outcome {
    RawValue::from_string("{}".to_owned()).map_err(|_| error::internal())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;
    use prometheus::Registry;
    use serde_json::value::to_raw_value;

    use super::*;
    use crate::mcp::message_memory::Account;
    use crate::mcp::mounts::Version;

    /// A server that never answers the POST of a message.
    struct Stalled {
        account: Arc<Account>,
        posted: Mutex<Vec<String>>,
    }

    impl Replies for Stalled {
        fn reply(self: Arc<Self>, message: String) -> BoxFuture<'static, ()> {
            self.posted.lock().push(message);
            Box::pin(pending())
        }

        fn memory(&self) -> &dyn MessageMemory {
            &*self.account
        }
    }

    #[tokio::test]
    async fn answers_that_a_server_does_not_take_are_bounded_together_and_end_with_the_session() {
        let (unsolicited, mut requests) = Events::uncharged(1);
        let opening = Opening {
            container: None,
            version: Version::V2025_11_25,
            capabilities: to_raw_value("").unwrap().into(),
            unsolicited: unsolicited.clone(),
        };
        let dropped = Dropped::new(&Registry::new()).unwrap();
        let inbox = Inbox::new(&"t".into(), &dropped, &opening);
        let server = Arc::new(Stalled {
            account: Account::of(3 << 20),
            posted: Mutex::default(),
        });
        for id in 0..10 {
            let (id, method) = (Id::number(id), "roots/list".into());
            inbox.request(id, method, None, &unsolicited, &server);
            let Some(Event::Request { reply, .. }) = requests.recv().await else {
                panic!("the request did not reach the client");
            };
            reply
                .send(Ok(to_raw_value(&"x".repeat(1 << 20)).unwrap()))
                .unwrap();
            tokio::task::yield_now().await;
        }
        let posted = std::mem::take(&mut *server.posted.lock());
        let long = posted.iter().filter(|message| message.len() > 1 << 20);
        assert_eq!((posted.len(), long.count()), (10, 2));
        assert!(posted[9].contains("\"id\":9,\"error\""), "{}", posted[9]);
        assert!(server.account.reserved() > 2 << 20);
        inbox.ended.cancel();
        let released = async {
            while server.account.reserved() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), released).await.unwrap();
    }
}
