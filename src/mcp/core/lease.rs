//! What the gateway keeps for one lease: who is attached, and what each kind of client sees.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use addons::contract::{Code, Container, Denial};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::attached::{Attached, Wishes};
use super::known_sessions::KnownSessions;
use super::view::View;
use super::{Caller, List};

/// Messages of one lease's clients that may be under way at once.
pub const MAX_CALLS_PER_LEASE: usize = 1024;
/// Kinds of clients whose lists are kept; that of the least recent request goes.
const MAX_VIEWS: usize = 16;
/// URIs that were seen in results, for which the server is remembered; the oldest goes.
const MAX_LEARNED: usize = 4096;
/// Longer URIs are not remembered, in bytes.
const MAX_LEARNED_URI: usize = 1024;

/// One lease's clients and views. Owned by the lease.
pub(super) struct Lease {
    pub attached: Mutex<Vec<Arc<Attached>>>,
    pub sessions: KnownSessions,
    /// By the client's session, for as long as it lasts.
    wishes: Mutex<Vec<(Weak<Caller>, Arc<Wishes>)>>,
    views: Mutex<VecDeque<Arc<View>>>,
    /// Servers that a list waited for in vain. Lists leave them out at once until they answer.
    slow: Mutex<HashSet<Arc<str>>>,
    learned: Mutex<Learned>,
    calls: Arc<Semaphore>,
    /// Wakes whoever compares lists with what clients saw.
    pub changed: Changed,
}

/// Lists that may look different, for reasons that mounts do not know of.
#[derive(Default)]
pub(super) struct Changed {
    lists: Mutex<Vec<List>>,
    notify: Notify,
    is_watched: AtomicBool,
}

impl Changed {
    /// Whether nobody compares lists yet; whoever asks begins to.
    pub fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    /// A list may look different.
    pub fn tell(&self, list: List) {
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
    /// That of a container.
    pub fn of(container: &Container) -> &Arc<Self> {
        container.state_or_init(|| {
            Arc::new(Self {
                attached: Mutex::default(),
                sessions: KnownSessions::default(),
                wishes: Mutex::default(),
                views: Mutex::default(),
                slow: Mutex::default(),
                learned: Mutex::default(),
                calls: Arc::new(Semaphore::new(MAX_CALLS_PER_LEASE)),
                changed: Changed::default(),
            })
        })
    }

    /// Room for one more message under way.
    pub fn begin(&self) -> Result<OwnedSemaphorePermit, Denial> {
        let permit = Arc::clone(&self.calls).try_acquire_owned();
        permit.map_err(|_| too_many("of this container"))
    }

    /// What clients like this one see.
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

    /// The clients that are attached and like this one: they share sessions.
    pub fn like(&self, caller: &Caller) -> Vec<Arc<Attached>> {
        let attached = self.attached.lock();
        let like = attached.iter().filter(|one| same_kind(&one.caller, caller));
        like.cloned().collect()
    }

    /// What a client with a handshake asked for.
    pub fn wishes(&self, caller: &Arc<Caller>) -> Arc<Wishes> {
        let mut all = self.wishes.lock();
        all.retain(|(caller, _)| caller.strong_count() > 0);
        let same = |other: &Weak<Caller>| {
            other.upgrade().is_some_and(|other| {
                let session = other.session.is_some() && other.session == caller.session;
                session || Arc::ptr_eq(&other, caller)
            })
        };
        if let Some((_, wishes)) = all.iter().find(|(other, _)| same(other)) {
            return Arc::clone(wishes);
        }
        let wishes = Arc::<Wishes>::default();
        all.push((Arc::downgrade(caller), Arc::clone(&wishes)));
        wishes
    }

    /// What clients like this one asked for.
    pub fn all_wishes(&self, caller: &Caller) -> Vec<Arc<Wishes>> {
        let all = self.wishes.lock();
        let like = all.iter().filter(|(other, _)| {
            other
                .upgrade()
                .is_some_and(|other| same_kind(&other, caller))
        });
        like.map(|(_, wishes)| Arc::clone(wishes)).collect()
    }

    /// Whether servers have to be told something for clients like this one.
    pub fn has_wishes(&self, caller: &Caller) -> bool {
        !self.like(caller).is_empty() || !self.all_wishes(caller).is_empty()
    }

    pub fn is_slow(&self, server: &str) -> bool {
        self.slow.lock().contains(server)
    }

    /// Whether it was slow before.
    pub fn set_slow(&self, server: &Arc<str>, slow: bool) -> bool {
        let mut servers = self.slow.lock();
        match slow {
            true => !servers.insert(Arc::clone(server)),
            false => servers.remove(server),
        }
    }

    /// Remembers that a server names this URI.
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

    /// The server that named a URI.
    pub fn learned(&self, uri: &str) -> Option<Arc<str>> {
        self.learned.lock().servers.get(uri).cloned()
    }
}

/// Whether two clients share sessions and see the same lists.
pub(super) fn same_kind(one: &Caller, other: &Caller) -> bool {
    one.version == other.version && one.capabilities.get() == other.capabilities.get()
}

/// A denial of what would be one message too many.
pub(super) fn too_many(whose: &str) -> Denial {
    let sentence = format!("Too many MCP messages {whose} are under way");
    Denial::new(Code::RateLimited, sentence).retry_after(std::time::Duration::from_secs(1))
}
