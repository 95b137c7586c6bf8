//! Messages of servers other than answers.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::message::Outcome;

/// Events that may wait for one client or one call. A notification that finds the queue full is
/// dropped, a request is answered with an error.
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
        /// Takes the answer. Dropped, it tells the server that nobody answers.
        reply: oneshot::Sender<Outcome>,
    },
}
