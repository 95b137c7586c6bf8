//! Notifications and requests that an MCP server sends.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use addons::contract::{Denial, Executing};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::contexts::RequestContext;
use super::message::Outcome;
use super::message_memory::{MessageMemory, MessageReservation};
use crate::http::Reservation;

/// Capacity of an event queue. Each call, each stream of a client and each session with a server
/// has a queue. If the queue is full, a request is answered with an error, and a notification is
/// dropped. Only progress of a coding sidecar waits until there is room.
pub const EVENT_QUEUE: usize = 256;
/// The longest params that are not charged, in bytes: a full queue of such events takes 256 KiB.
const UNCHARGED: usize = 1024;
/// The longest method of an event, in bytes. Methods are not charged, so an event with a longer one
/// is not queued.
const MAX_METHOD: usize = 256;

/// Sender of a queue of events.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    /// The memory that the params of queued events are charged to; `None` if they are not charged.
    memory: Option<Arc<dyn MessageMemory>>,
    /// The memory of the message whose events these are, held as long as its call.
    message: MessageReservation,
    /// The call whose events these are.
    pub call: Arc<CallState>,
}

/// What those who work on a client's call know of each other.
#[derive(Default)]
pub struct CallState {
    /// Cancelled when the client stops reading. It may come back for what it has missed.
    pub left: CancellationToken,
    /// The approval under which the call was sent, if a person approved it.
    pub executing: Mutex<Option<Executing>>,
    /// The request context that the call names.
    pub context: OnceLock<Arc<RequestContext>>,
}

impl Events {
    /// Creates a queue of [`EVENT_QUEUE`] events that are charged to `memory`.
    pub fn charged(memory: Arc<dyn MessageMemory>) -> (Self, mpsc::Receiver<Event>) {
        let (mut events, receiver) = Self::uncharged(EVENT_QUEUE);
        events.memory = Some(memory);
        (events, receiver)
    }

    /// Creates a queue whose events are not charged.
    pub fn uncharged(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (queue, receiver) = mpsc::channel(capacity);
        let events = Self {
            queue,
            memory: None,
            message: MessageReservation::default(),
            call: Arc::default(),
        };
        (events, receiver)
    }

    /// Holds the reservation of the message whose events these are.
    pub fn of_message(mut self, message: Option<Arc<Reservation>>) -> Self {
        self.message = message.into();
        self
    }

    /// The reservation of the message whose events these are.
    pub fn message(&self) -> MessageReservation {
        self.message.clone()
    }

    /// Creates a queue without a receiver, for a request whose events are dropped.
    pub fn none() -> Self {
        Self::uncharged(1).0
    }

    /// As [`none`](Self::none), for a request that continues a call.
    pub fn continuing(call: &Arc<CallState>) -> Self {
        Self {
            call: Arc::clone(call),
            ..Self::none()
        }
    }

    /// Creates another queue of [`EVENT_QUEUE`] events that are charged to the same memory.
    pub fn another(&self) -> (Self, mpsc::Receiver<Event>) {
        let (queue, receiver) = mpsc::channel(EVENT_QUEUE);
        let mut events = self.clone();
        events.queue = queue;
        (events, receiver)
    }

    /// Queues an event. Fails with [`TrySendError::Full`] if the queue is full, memory is exhausted
    /// or the method is longer than `MAX_METHOD`.
    pub fn try_send(&self, event: Event) -> Result<(), TrySendError<Event>> {
        let place = match self.queue.try_reserve() {
            Ok(place) => place,
            Err(TrySendError::Full(())) => return Err(TrySendError::Full(event)),
            Err(TrySendError::Closed(())) => return Err(TrySendError::Closed(event)),
        };
        place.send(self.charge(event).map_err(TrySendError::Full)?);
        Ok(())
    }

    /// Queues an event; waits for room. Drops the event if memory is exhausted or the receiver was
    /// dropped.
    pub async fn send(&self, event: Event) {
        if let Ok(place) = self.queue.reserve().await
            && let Ok(event) = self.charge(event)
        {
            place.send(event);
        }
    }

    /// Charges an outcome to the memory of the queue, unless the outcome is short. The outcome is
    /// charged until the returned reservation is dropped. Denies if memory is exhausted.
    pub fn hold(&self, outcome: Outcome) -> Result<(Outcome, MessageReservation), Denial> {
        let bytes = match &outcome {
            Ok(result) => result.get().len(),
            Err(error) => {
                let data = error.data.as_ref().map_or(0, |data| data.get().len());
                data.saturating_add(error.message.len())
            }
        };
        let reservation = self.reserve(bytes)?;
        Ok((outcome, reservation))
    }

    /// Charges a message of this length to the memory of the queue, unless the message is short.
    /// Denies if memory is exhausted.
    pub fn reserve(&self, bytes: usize) -> Result<MessageReservation, Denial> {
        let mut reservation = MessageReservation::default();
        if let Some(memory) = &self.memory {
            reservation.grow_to(&**memory, bytes)?;
        }
        Ok(reservation)
    }

    /// Charges the params of an event. Returns the event as the error if memory is exhausted or the
    /// method is too long.
    fn charge(&self, mut event: Event) -> Result<Event, Event> {
        let (Event::Notification { method, params } | Event::Request { method, params, .. }) =
            &mut event;
        let charged = match (params, &self.memory) {
            (Some(params), Some(memory)) => params.charge(&**memory).is_ok(),
            _ => true,
        };
        match charged && method.len() <= MAX_METHOD {
            true => Ok(event),
            false => Err(event),
        }
    }

    #[cfg(test)]
    pub fn same_channel(&self, other: &Self) -> bool {
        self.queue.same_channel(&other.queue)
    }
}

/// A notification or request of a server.
#[derive(Debug)]
pub enum Event {
    /// A notification.
    Notification {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Params>,
    },
    /// A request: sampling, elicitation, roots.
    Request {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Params>,
        /// Takes the client's answer. If the sender is dropped, the server gets an error.
        reply: oneshot::Sender<Outcome>,
    },
}

/// Params of an event. A queue charges them to the memory for buffered bodies, unless they are
/// short. They stay charged until they are dropped.
pub struct Params {
    text: Box<RawValue>,
    memory: Option<Arc<Reservation>>,
}

impl Params {
    /// Charges the params to `memory`, unless they are short. Releases an earlier reservation.
    fn charge(&mut self, memory: &dyn MessageMemory) -> Result<(), Denial> {
        let bytes = self.text.get().len();
        self.memory = None;
        if bytes > UNCHARGED {
            let reservation = memory.reserve();
            let reservation = reservation.inspect_err(|denial| memory.count(denial))?;
            reservation.grow_droppable(bytes)?;
            self.memory = Some(reservation);
        }
        Ok(())
    }

    /// The params with another text of about the same length, charged as before.
    #[must_use]
    pub fn with_text(self, text: Box<RawValue>) -> Self {
        Self { text, ..self }
    }

    /// The text, which is no longer charged.
    pub fn into_text(self) -> Box<RawValue> {
        self.text
    }
}

impl From<Box<RawValue>> for Params {
    fn from(text: Box<RawValue>) -> Self {
        Self { text, memory: None }
    }
}

impl Deref for Params {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        &self.text
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use addons::contract::RpcError;

    use super::super::error::rpc_error;
    use super::super::message_memory::Account;
    use super::*;

    fn event(bytes: usize) -> Event {
        let params = serde_json::value::to_raw_value(&"x".repeat(bytes)).unwrap();
        Event::Notification {
            method: "a".into(),
            params: Some(params.into()),
        }
    }

    fn is_full(sent: &Result<(), TrySendError<Event>>) -> bool {
        matches!(sent, Err(TrySendError::Full(_)))
    }

    #[tokio::test]
    async fn a_queued_event_is_charged_until_its_params_are_dropped() {
        const LONG: usize = 100_000;
        // Events get half of the account.
        let account = Account::of(5 * LONG);
        let (events, mut receiver) = Events::charged(Arc::clone(&account) as _);
        events.try_send(event(LONG)).unwrap();
        events.try_send(event(LONG)).unwrap();
        assert!(is_full(&events.try_send(event(LONG))));
        assert!(account.reserved() > 2 * LONG, "{}", account.reserved());
        let (another, mut relayed) = events.another();
        assert!(is_full(&another.try_send(event(LONG))));
        another.send(event(LONG)).await;
        assert!(relayed.try_recv().is_err());
        // A short event needs no memory.
        another.try_send(event(1000)).unwrap();
        drop(relayed.recv().await);
        let Some(Event::Notification { params, .. }) = receiver.recv().await else {
            panic!("no event");
        };
        assert!(is_full(&events.try_send(event(LONG))));
        drop(params);
        events.try_send(event(LONG)).unwrap();
        // The other half holds an outcome.
        let outcome = || serde_json::value::to_raw_value(&"x".repeat(2 * LONG)).unwrap();
        let held = events.hold(Ok(outcome())).unwrap();
        assert!(account.reserved() > 4 * LONG, "{}", account.reserved());
        let data = Some(outcome());
        let error = RpcError {
            data,
            ..rpc_error(&Denial::internal())
        };
        assert!(events.hold(Err(error)).is_err());
        drop((receiver, held));
        assert_eq!(account.reserved(), 0);
    }

    #[tokio::test]
    async fn an_event_with_a_long_method_is_refused() {
        let (events, _receiver) = Events::uncharged(8);
        for (length, is_refused) in [(MAX_METHOD, false), (MAX_METHOD + 1, true)] {
            let method = "m".repeat(length).into();
            let params = None;
            let sent = events.try_send(Event::Notification { method, params });
            assert_eq!(is_full(&sent), is_refused, "{length}");
        }
    }
}
