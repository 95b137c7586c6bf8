//! Clients that receive messages outside their calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Caller, Event, Events, List, LogLevel};

/// The most resources that one client may subscribe to. The gateway refuses a further subscription
/// of a legacy client, and a filter of a modern client with more URIs.
pub const MAX_SUBSCRIPTIONS: usize = 256;

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
    /// The resources that the client subscribed to; at most [`MAX_SUBSCRIPTIONS`].
    pub uris: Mutex<BTreeSet<Arc<str>>>,
    /// The lowest severity of log messages that the client asked for.
    pub log_level: Mutex<Option<LogLevel>>,
}

impl ClientPreferences {
    /// Whether the client may subscribe to a resource: the client is subscribed to the resource
    /// already, or to fewer than [`MAX_SUBSCRIPTIONS`] resources.
    pub fn may_subscribe(&self, uri: &str) -> bool {
        let uris = self.uris.lock();
        uris.len() < MAX_SUBSCRIPTIONS || uris.contains(uri)
    }

    /// Adds a URI. Returns `false`, without adding the URI, if the client is subscribed to
    /// [`MAX_SUBSCRIPTIONS`] others.
    pub fn subscribe(&self, uri: &Arc<str>) -> bool {
        let mut uris = self.uris.lock();
        let is_allowed = uris.len() < MAX_SUBSCRIPTIONS || uris.contains(uri);
        if is_allowed {
            uris.insert(Arc::clone(uri));
        }
        is_allowed
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
            Interest::Everything => self.preferences.uris.lock().clone(),
            Interest::Filter(filter) => {
                let first = filter.uris.iter().take(MAX_SUBSCRIPTIONS);
                first.cloned().collect()
            }
        }
    }
}
