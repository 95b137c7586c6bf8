//! What a server sends to a client on its own account.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::message::Outcome;

/// Events that may wait for one client or one call. A notification that finds the queue full is
/// dropped, a request is answered with an error.
pub const EVENT_QUEUE: usize = 256;

/// The way of events to whoever takes them.
pub type Events = mpsc::Sender<Event>;

/// A message of a server that answers nothing.
#[derive(Debug)]
pub enum Event {
    /// It wants no answer.
    Notification {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Box<RawValue>>,
    },
    /// It waits for an answer: sampling, elicitation, roots.
    Request {
        /// Its method.
        method: Arc<str>,
        /// Its params.
        params: Option<Box<RawValue>>,
        /// Takes the answer. Dropped, it tells the server that nobody answers.
        reply: oneshot::Sender<Outcome>,
    },
}
