//! Clients that receive messages outside their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Caller, Event, Events, List, LogLevel};

/// The most resources that one client may subscribe to. The gateway refuses a further subscription
/// of a legacy client, and a filter of a modern client with more URIs.
pub const MAX_SUBSCRIPTIONS: usize = 256;

/// The most bytes of URIs that one lease's clients may be subscribed to together, with
/// [`URI_OVERHEAD`] bytes more for each URI. They are not charged to the container's memory.
pub const MAX_URI_BYTES: usize = 1 << 20;
/// Memory of a subscribed URI besides its text, in bytes.
const URI_OVERHEAD: usize = 256;

/// Room for the URIs that one lease's clients are subscribed to, with a permit for each byte.
pub(super) struct UriRoom(Arc<Semaphore>);

impl Default for UriRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_URI_BYTES)))
    }
}

impl UriRoom {
    /// Takes room for URIs until the permit is dropped; `None` if there is not enough.
    pub fn take<'u>(
        &self,
        uris: impl IntoIterator<Item = &'u str>,
    ) -> Option<OwnedSemaphorePermit> {
        let bytes = uris.into_iter().map(|uri| uri.len() + URI_OVERHEAD);
        let bytes = u32::try_from(bytes.sum::<usize>()).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(bytes).ok()
    }
}

/// The messages outside calls that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interest {
    /// All messages outside its calls; for legacy clients.
    Everything,
    /// The messages that a modern client subscribed to.
    Filter(Filter),
}

/// The notifications of a modern client's stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Changes of the list of tools.
    pub tools: bool,
    /// Changes of the list of prompts.
    pub prompts: bool,
    /// Changes of the lists of resources.
    pub resources: bool,
    /// Changes of these resources. The core ignores URIs after the first [`MAX_SUBSCRIPTIONS`].
    pub uris: Vec<Arc<str>>,
}

/// The subscriptions and the log level that the client of a session requested.
#[derive(Default)]
pub(super) struct ClientPreferences {
    /// The resources that the client subscribed to, at most [`MAX_SUBSCRIPTIONS`], each with its
    /// room.
    uris: Mutex<BTreeMap<Arc<str>, OwnedSemaphorePermit>>,
    /// The lowest severity of log messages that the client asked for.
    pub log_level: Mutex<Option<LogLevel>>,
}

impl ClientPreferences {
    /// Whether the client may subscribe to a resource: the client is subscribed to it already, or is
    /// subscribed to fewer than [`MAX_SUBSCRIPTIONS`] resources and there is room for the URI.
    pub fn may_subscribe(&self, uri: &str, room: &UriRoom) -> bool {
        let uris = self.uris.lock();
        uris.contains_key(uri) || (uris.len() < MAX_SUBSCRIPTIONS && room.take([uri]).is_some())
    }

    /// Adds a URI. Returns `false`, without adding the URI, if the client may not
    /// [subscribe](Self::may_subscribe) to it.
    pub fn subscribe(&self, uri: &Arc<str>, room: &UriRoom) -> bool {
        let mut uris = self.uris.lock();
        if uris.contains_key(uri) {
            return true;
        }
        let taken = room.take([&**uri]);
        let taken = taken.filter(|_| uris.len() < MAX_SUBSCRIPTIONS);
        taken.is_some_and(|taken| uris.insert(Arc::clone(uri), taken).is_none())
    }

    /// Removes a URI, if the client is subscribed to it.
    pub fn unsubscribe(&self, uri: &str) {
        self.uris.lock().remove(uri);
    }

    /// The resources that the client subscribed to.
    pub fn uris(&self) -> BTreeSet<Arc<str>> {
        self.uris.lock().keys().cloned().collect()
    }
}

/// An attached client.
pub(super) struct Attached {
    pub caller: Arc<Caller>,
    /// The queue of the client.
    pub events: Events,
    pub interest: Interest,
    pub preferences: Arc<ClientPreferences>,
    /// Counts the requests outside calls that wait for the client: each holds a clone.
    pub open_requests: Arc<()>,
}

impl Attached {
    /// Queues an event for the client. Drops the event if the queue is full or closed, or memory is
    /// exhausted. The server of a dropped request gets an error.
    pub fn send(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            let container = &self.caller.container.id;
            tracing::debug!(
                %container,
                "dropped a message to an MCP client: the client's event queue is full or closed, \
                 or memory is exhausted"
            );
        }
    }

    /// Number of requests that wait for the client.
    pub fn open_request_count(&self) -> usize {
        Arc::strong_count(&self.open_requests).saturating_sub(1)
    }

    /// Whether the client takes `list_changed` for this list.
    pub fn wants(&self, list: List) -> bool {
        match &self.interest {
            Interest::Everything => true,
            Interest::Filter(filter) => match list {
                List::Tools => filter.tools,
                List::Prompts => filter.prompts,
                List::Resources => filter.resources,
            },
        }
    }

    /// Whether the client takes requests and log messages outside its calls.
    pub fn takes_unrelated(&self) -> bool {
        self.interest == Interest::Everything
    }

    /// Whether the client takes a log message of this severity outside its calls.
    pub fn takes_log(&self, level: Option<LogLevel>) -> bool {
        let wanted = *self.preferences.log_level.lock();
        let is_enough = wanted.is_none_or(|wanted| level.is_none_or(|level| level >= wanted));
        is_enough && self.takes_unrelated()
    }

    /// Whether the client subscribed to a resource, or to a resource that contains it.
    pub fn follows(&self, uri: &str) -> bool {
        let contains = |parent: &Arc<str>| {
            let rest = uri.strip_prefix(&**parent);
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || parent.ends_with('/')
            })
        };
        self.uris().iter().any(contains)
    }

    /// The resources that the client subscribed to.
    pub fn uris(&self) -> BTreeSet<Arc<str>> {
        match &self.interest {
            Interest::Everything => self.preferences.uris(),
            Interest::Filter(filter) => {
                let first = filter.uris.iter().take(MAX_SUBSCRIPTIONS);
                first.cloned().collect()
            }
        }
    }
}
