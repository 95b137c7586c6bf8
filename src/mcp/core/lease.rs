//! State of one lease: attached clients, their views of the lists, and sessions with servers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use addons::contract::{Code, Container, Denial};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::attached::{Attached, ClientPreferences, UriRoom};
use super::client_progress::ProgressReceivers;
use super::known_sessions::KnownSessions;
use super::task::Tasks;
use super::view::View;
use super::{Caller, List};

/// The most requests of one lease's clients that may be under way at once. A further request is
/// denied.
pub const MAX_CALLS_PER_LEASE: usize = 1024;
/// The most calls of one lease that may wait for people at once, as many as may wait in the chain. A
/// further call learns at once that it must be repeated.
const MAX_WAITS_FOR_PEOPLE: usize = 256;
/// The most views that are kept. A view holds the lists for one revision and one set of
/// capabilities. The least recently used view is evicted.
const MAX_VIEWS: usize = 16;
/// The most URIs whose server is remembered; the oldest is evicted.
const MAX_LEARNED: usize = 4096;
/// The longest URI that is remembered, in bytes.
const MAX_LEARNED_URI: usize = 1024;

/// The clients, views and sessions of one lease. Owned by the lease.
pub(super) struct Lease {
    pub attached: Mutex<Vec<Arc<Attached>>>,
    pub sessions: KnownSessions,
    pub progress_receivers: Arc<ProgressReceivers>,
    /// Subscriptions and log levels by the client's session; dropped with the session.
    preferences: Mutex<Vec<(Weak<Caller>, Arc<ClientPreferences>)>>,
    views: Mutex<VecDeque<Arc<View>>>,
    /// Servers with a list that was not read in time and is still being read. Meanwhile, lists do
    /// not wait for such a server.
    slow: Mutex<HashSet<Arc<str>>>,
    /// How often a list left out a server, or contained its last known entries, since the server
    /// did not answer.
    pub left_out: AtomicUsize,
    learned: Mutex<Learned>,
    calls: Arc<Semaphore>,
    /// Has [`MAX_WAITS_FOR_PEOPLE`] permits.
    pub waits: Arc<Semaphore>,
    /// The tasks of calls that wait for people, or have waited.
    pub tasks: Arc<Tasks>,
    /// Room for subscribed URIs.
    pub uri_room: UriRoom,
    /// Wakes the task that compares the lists with those that clients saw most recently.
    pub changed: Changed,
}

/// Lists that may have changed without an announcement of a mount, for example because a slow
/// server responded.
#[derive(Default)]
pub(super) struct Changed {
    lists: Mutex<Vec<List>>,
    notify: Notify,
    is_watched: AtomicBool,
}

impl Changed {
    /// Returns `true` to the first caller, which starts the comparing task.
    pub fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    /// Marks a list as changed.
    pub fn mark(&self, list: List) {
        let mut lists = self.lists.lock();
        if !lists.contains(&list) {
            lists.push(list);
        }
        self.notify.notify_one();
    }

    /// Waits for the next changes. Cancellation-safe.
    pub async fn next(&self) -> Vec<List> {
        loop {
            let lists = std::mem::take(&mut *self.lists.lock());
            if !lists.is_empty() {
                return lists;
            }
            self.notify.notified().await;
        }
    }
}

#[derive(Default)]
struct Learned {
    servers: HashMap<Arc<str>, Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Lease {
    /// The state of a container's lease; created on first use.
    pub fn of(container: &Container) -> &Arc<Self> {
        container.state_or_init(|| {
            Arc::new(Self {
                attached: Mutex::default(),
                sessions: KnownSessions::default(),
                progress_receivers: Arc::default(),
                preferences: Mutex::default(),
                views: Mutex::default(),
                slow: Mutex::default(),
                left_out: AtomicUsize::new(0),
                learned: Mutex::default(),
                calls: Arc::new(Semaphore::new(MAX_CALLS_PER_LEASE)),
                waits: Arc::new(Semaphore::new(MAX_WAITS_FOR_PEOPLE)),
                tasks: Arc::default(),
                uri_room: UriRoom::default(),
                changed: Changed::default(),
            })
        })
    }

    /// Counts a request as under way until the permit is dropped. Denies the request if
    /// [`MAX_CALLS_PER_LEASE`] are under way.
    pub fn begin(&self) -> Result<OwnedSemaphorePermit, Denial> {
        let permit = Arc::clone(&self.calls).try_acquire_owned();
        permit.map_err(|_| too_many("of this container"))
    }

    /// The view for clients with the caller's revision and capabilities; created on first use.
    pub fn view(&self, caller: &Caller) -> Arc<View> {
        let mut views = self.views.lock();
        let known = views.iter().position(|view| view.is_for(caller));
        if let Some(view) = known.and_then(|at| views.remove(at)) {
            views.push_front(Arc::clone(&view));
            return view;
        }
        let view = Arc::new(View::of(caller));
        views.push_front(Arc::clone(&view));
        views.truncate(MAX_VIEWS);
        view
    }

    /// All views.
    pub fn views(&self) -> Vec<Arc<View>> {
        self.views.lock().iter().cloned().collect()
    }

    /// The attached clients with the caller's revision and capabilities.
    pub fn attached_like(&self, caller: &Caller) -> Vec<Arc<Attached>> {
        self.attached_if(|one| one.is_like(caller.version, &caller.capabilities))
    }

    /// The attached clients for which `is_wanted` is true.
    pub fn attached_if(&self, is_wanted: impl Fn(&Caller) -> bool) -> Vec<Arc<Attached>> {
        let attached = self.attached.lock();
        let wanted = attached.iter().filter(|one| is_wanted(&one.caller));
        wanted.cloned().collect()
    }

    /// The preferences of a session; created on first use.
    pub fn preferences(&self, caller: &Arc<Caller>) -> Arc<ClientPreferences> {
        let mut all = self.preferences.lock();
        all.retain(|(caller, _)| caller.strong_count() > 0);
        let same = |other: &Weak<Caller>| {
            other.upgrade().is_some_and(|other| {
                let session = other.session.is_some() && other.session == caller.session;
                session || Arc::ptr_eq(&other, caller)
            })
        };
        if let Some((_, preferences)) = all.iter().find(|(other, _)| same(other)) {
            return Arc::clone(preferences);
        }
        let preferences = Arc::<ClientPreferences>::default();
        all.push((Arc::downgrade(caller), Arc::clone(&preferences)));
        preferences
    }

    /// The preferences of all sessions with clients for which `is_wanted` is true.
    pub fn preferences_if(
        &self,
        is_wanted: impl Fn(&Caller) -> bool,
    ) -> Vec<Arc<ClientPreferences>> {
        let all = self.preferences.lock();
        let wanted = all
            .iter()
            .filter(|(other, _)| other.upgrade().is_some_and(|other| is_wanted(&other)));
        wanted
            .map(|(_, preferences)| Arc::clone(preferences))
            .collect()
    }

    /// Whether a list of the server was not read in time and is still being read.
    pub fn is_slow(&self, server: &str) -> bool {
        self.slow.lock().contains(server)
    }

    /// Sets whether a server is slow; returns whether it was.
    pub fn set_slow(&self, server: &Arc<str>, slow: bool) -> bool {
        let mut servers = self.slow.lock();
        match slow {
            true => !servers.insert(Arc::clone(server)),
            false => servers.remove(server),
        }
    }

    /// Remembers the server of a URI, unless a server of this URI is remembered already.
    pub fn learn(&self, uri: &str, server: &Arc<str>) {
        if uri.len() > MAX_LEARNED_URI {
            return;
        }
        let mut learned = self.learned.lock();
        if learned.servers.contains_key(uri) {
            return;
        }
        let uri: Arc<str> = uri.into();
        learned.servers.insert(Arc::clone(&uri), Arc::clone(server));
        learned.order.push_back(uri);
        if learned.order.len() > MAX_LEARNED
            && let Some(oldest) = learned.order.pop_front()
        {
            learned.servers.remove(&oldest);
        }
    }

    /// The remembered server of a URI.
    pub fn learned(&self, uri: &str) -> Option<Arc<str>> {
        self.learned.lock().servers.get(uri).cloned()
    }
}

/// The denial of a request over a limit.
pub(super) fn too_many(whose: &str) -> Denial {
    let sentence = format!("Too many MCP messages {whose} are under way");
    Denial::new(Code::RateLimited, sentence).retry_after(std::time::Duration::from_secs(1))
}
