//! Messages of servers that are not answers.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::message::Outcome;

/// The most events that wait for one client or one call. If the queue is full, a notification is
/// dropped and a request is answered with an error.
pub const EVENT_QUEUE: usize = 256;

/// Sender of a queue of events.
pub type Events = mpsc::Sender<Event>;

/// A notification or request of a server.
#[derive(Debug)]
pub enum Event {
    /// A notification.
    Notification {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Box<RawValue>>,
    },
    /// A request: sampling, elicitation, roots.
    Request {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Box<RawValue>>,
        /// Takes the answer. Dropping it answers the server with an error.
        reply: oneshot::Sender<Outcome>,
    },
}
