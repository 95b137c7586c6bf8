//! Clients that take messages which belong to no call of theirs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::lease::Lease;
use super::{Caller, Core, Event, Events, List, LogLevel};

/// The most URIs that one client may subscribe to.
pub const MAX_SUBSCRIPTIONS: usize = 256;

/// What a client wants to be told of.
#[derive(Clone, Debug, Default)]
pub struct Interest {
    /// `notifications/tools/list_changed`.
    pub tools: bool,
    /// `notifications/prompts/list_changed`.
    pub prompts: bool,
    /// `notifications/resources/list_changed`.
    pub resources: bool,
    /// `notifications/resources/updated` of these URIs, besides those that the client subscribed
    /// to by `resources/subscribe`. At most [`MAX_SUBSCRIPTIONS`] count.
    pub uris: BTreeSet<Arc<str>>,
    /// Log messages and requests that belong to no call: clients with a handshake.
    pub unrelated: bool,
}

impl Interest {
    /// What a client with a handshake is told of.
    #[must_use]
    pub fn of_session() -> Self {
        Self {
            tools: true,
            prompts: true,
            resources: true,
            uris: BTreeSet::new(),
            unrelated: true,
        }
    }

    fn wants(&self, list: List) -> bool {
        match list {
            List::Tools => self.tools,
            List::Prompts => self.prompts,
            List::Resources => self.resources,
        }
    }
}

/// A client that is attached.
pub(super) struct Attached {
    id: u64,
    pub caller: Arc<Caller>,
    events: Events,
    /// Held by requests that wait for it and belong to no call.
    asked: Arc<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    interest: Interest,
    subscribed: BTreeSet<Arc<str>>,
    log_level: Option<LogLevel>,
}

impl Attached {
    pub fn is_session(&self, caller: &Arc<Caller>) -> bool {
        let same_session = self.caller.session.is_some() && self.caller.session == caller.session;
        Arc::ptr_eq(&self.caller, caller) || same_session
    }

    /// Hands an event to the client; drops a notification that finds the queue full, and a request
    /// with it, which tells its server that nobody answers.
    pub fn send(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            tracing::debug!(container = %self.caller.container.id, "an MCP client takes no more events");
        }
    }

    /// Where it takes events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Counts a request that waits for it, until the handle is dropped.
    pub fn ask(&self) -> Arc<()> {
        Arc::clone(&self.asked)
    }

    /// Requests that wait for it.
    pub fn asked(&self) -> usize {
        Arc::strong_count(&self.asked).saturating_sub(1)
    }

    pub fn wants(&self, list: List) -> bool {
        self.state.lock().interest.wants(list)
    }

    /// Whether it takes what belongs to no call.
    pub fn takes_unrelated(&self) -> bool {
        self.state.lock().interest.unrelated
    }

    pub fn log_level(&self) -> Option<LogLevel> {
        self.state.lock().log_level
    }

    pub fn set_log_level(&self, level: LogLevel) {
        self.state.lock().log_level = Some(level);
    }

    /// Whether it takes a log message of this severity.
    pub fn takes_log(&self, level: Option<LogLevel>) -> bool {
        let state = self.state.lock();
        let wanted = state.log_level;
        state.interest.unrelated
            && wanted.is_none_or(|wanted| level.is_none_or(|level| level >= wanted))
    }

    /// Whether it subscribed to a resource, or to one that this one is a part of.
    pub fn follows(&self, uri: &str) -> bool {
        let is_part = |of: &Arc<str>| {
            let rest = uri.strip_prefix(&**of);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || of.ends_with('/'))
        };
        let state = self.state.lock();
        state
            .subscribed
            .iter()
            .chain(&state.interest.uris)
            .any(is_part)
    }

    /// The URIs that it is told of.
    pub fn uris(&self) -> BTreeSet<Arc<str>> {
        let state = self.state.lock();
        let all = state.subscribed.iter().chain(&state.interest.uris);
        all.take(MAX_SUBSCRIPTIONS).cloned().collect()
    }

    /// Adds a URI; `false` where there are too many.
    pub fn subscribe(&self, uri: &Arc<str>) -> bool {
        let mut state = self.state.lock();
        let room = state.subscribed.len() < MAX_SUBSCRIPTIONS;
        if room {
            state.subscribed.insert(Arc::clone(uri));
        }
        room
    }

    pub fn unsubscribe(&self, uri: &str) {
        self.state.lock().subscribed.remove(uri);
    }
}

/// A client's place among those who are told of events. Dropping it detaches the client.
pub struct Attachment {
    core: Weak<Core>,
    lease: Arc<Lease>,
    attached: Arc<Attached>,
}

impl Attachment {
    /// Changes what the client is told of.
    pub fn set(&self, interest: Interest) {
        self.attached.state.lock().interest = interest;
        if let Some(core) = self.core.upgrade() {
            core.interest_changed(&self.lease, &self.attached.caller, BTreeSet::new());
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let left = self.attached.uris();
        let mut attached = self.lease.attached.lock();
        attached.retain(|one| one.id != self.attached.id);
        drop(attached);
        if let Some(core) = self.core.upgrade() {
            core.interest_changed(&self.lease, &self.attached.caller, left);
        }
    }
}

impl Core {
    /// Attaches a client: from now on, what it is interested in goes to `events`. A client with a
    /// handshake is attached for as long as its session lasts.
    pub fn attach(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        interest: Interest,
        events: Events,
    ) -> Attachment {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lease = Lease::of(&caller.container);
        let state = State {
            interest,
            ..State::default()
        };
        let attached = Arc::new(Attached {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            caller: Arc::clone(caller),
            events,
            asked: Arc::default(),
            state: Mutex::new(state),
        });
        lease.attached.lock().push(Arc::clone(&attached));
        self.watch(lease, caller);
        self.interest_changed(lease, caller, BTreeSet::new());
        Attachment {
            core: Arc::downgrade(self),
            lease: Arc::clone(lease),
            attached,
        }
    }
}

/// A notification without params.
pub(super) fn notification(method: &str) -> Event {
    Event::Notification {
        method: method.into(),
        params: None::<Box<RawValue>>,
    }
}
