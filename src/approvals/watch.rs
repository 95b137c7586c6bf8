//! Streams of changes, for operators who watch.

use tokio::sync::broadcast::{self, Receiver, Sender, error::RecvError};

use super::bounds::MAX_BEHIND;
use super::record::Change;

/// Sends each change to all watchers. Never waits for one of them.
pub(super) struct Watchers(Sender<Change>);

impl Watchers {
    pub(super) fn new() -> Self {
        Self(broadcast::channel(MAX_BEHIND).0)
    }

    pub(super) fn send(&self, change: Change) {
        // Fails if nobody watches.
        let _ = self.0.send(change);
    }

    pub(super) fn subscribe(&self) -> Watch {
        Watch(self.0.subscribe())
    }
}

/// The changes since the subscription, in their order.
pub struct Watch(Receiver<Change>);

/// What a watcher sees next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Changed(Change),
    /// The watcher was more than [`MAX_BEHIND`] changes behind and missed some: it must list the
    /// questions again.
    Behind,
}

impl Watch {
    /// Waits for the next change; `None` after the ledger is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Seen> {
        match self.0.recv().await {
            Ok(change) => Some(Seen::Changed(change)),
            Err(RecvError::Lagged(_)) => Some(Seen::Behind),
            Err(RecvError::Closed) => None,
        }
    }
}
