//! Notifications and requests that an MCP server sends.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::message::Outcome;

/// Capacity of an event queue. Each call, each stream of a client and each session with a server
/// has a queue. If the queue is full, a request is answered with an error, and a notification is
/// dropped. Only progress of a coding sidecar waits until there is room.
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
