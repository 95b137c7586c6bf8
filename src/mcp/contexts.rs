//! Request contexts: what `before` of the interceptor API, the call at the gateway and `after` know of
//! one another.

mod request_context;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Container, ContainerId, Denial, LeaseId};
use addons::mcp::ContextSettings;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::time::{Instant, sleep};

use super::warnings::{Subject, warn};
use request_context::bytes_of_id;

pub use request_context::{MAX_PARAMS, RequestContext, Tool};

/// A container has at most this share of all contexts, and of their bytes.
const SHARE: usize = 10;
/// The most bytes of all contexts together.
const MAX_BYTES: usize = 128 << 20;
/// The shortest time between two searches for contexts that have expired.
const LEAST_SWEEP: Duration = Duration::from_secs(1);

/// Why there is no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoContext {
    /// None was made, or it was removed.
    Unknown,
    /// Its time is over.
    Expired,
    /// Its request called another tool than the response names.
    OfAnotherTool,
    /// Its request was denied, so that it cannot have this response.
    Denied,
}

impl NoContext {
    pub fn denial(self) -> Denial {
        Denial::malformed(match self {
            Self::Unknown => "no `tool_id`, and no context of this request_id, names the tool",
            Self::Expired => "the context of this request_id has expired: context.ttl in mcp.yaml",
            Self::OfAnotherTool => "the request with this id called another tool",
            Self::Denied => "the request with this id was denied, so it can have no result",
        })
    }
}

/// The contexts of all leases. Their ids are chosen by callers, so that a context is found only with
/// its lease.
pub struct Contexts {
    kept: Mutex<Kept>,
    active: IntGauge,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<Key, Slot>,
    /// In the order of their creation.
    order: BTreeMap<u64, Key>,
    leases: HashMap<LeaseId, Own>,
    next: u64,
    /// Every context with a lower number has expired.
    expired: u64,
    bytes: usize,
    ttl: Duration,
    /// Whether a task removes the contexts whose time is over.
    is_swept: bool,
}

type Key = (LeaseId, Box<str>);

/// The contexts of one lease.
struct Own {
    container: ContainerId,
    /// In the order of their creation.
    ids: BTreeMap<u64, Box<str>>,
    bytes: usize,
}

struct Slot {
    number: u64,
    created: Instant,
    bytes: usize,
    /// `None` once its time is over: for as long again, its id is known to have expired.
    context: Option<Arc<RequestContext>>,
}

/// The state of a lease whose end removes its contexts.
struct EndsWithLease;

impl Contexts {
    pub fn new(active: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            active,
        })
    }

    /// Keeps a context, in place of an earlier one with its id. Over a limit, the oldest one goes. The
    /// end of the lease removes its contexts.
    pub fn keep(
        self: &Arc<Self>,
        container: &Arc<Container>,
        context: RequestContext,
        limits: &ContextSettings,
    ) {
        let lease = container.lease;
        let key: Key = (lease, context.request_id.clone());
        let bytes = context.bytes();
        let mut kept = self.kept.lock();
        kept.ttl = limits.ttl;
        self.drop_slot(&mut kept, &key);
        let most = limits.capacity.div_ceil(SHARE);
        let is_over = |own: &&Own| {
            own.ids.len() >= most || own.bytes.saturating_add(bytes) > MAX_BYTES / SHARE
        };
        while let Some(own) = kept.leases.get(&lease).filter(is_over) {
            let Some(oldest) = own.ids.values().next().cloned() else {
                break;
            };
            self.evict(&mut kept, &(lease, oldest));
        }
        while kept.by_id.len() >= limits.capacity || kept.bytes.saturating_add(bytes) > MAX_BYTES {
            let Some(oldest) = kept.order.values().next().cloned() else {
                break;
            };
            self.evict(&mut kept, &oldest);
        }
        let number = kept.next;
        kept.next = number.wrapping_add(1);
        kept.bytes = kept.bytes.saturating_add(bytes);
        kept.order.insert(number, key.clone());
        let own = kept.leases.entry(lease).or_insert_with(|| Own {
            container: container.id.clone(),
            ids: BTreeMap::new(),
            bytes: 0,
        });
        own.ids.insert(number, key.1.clone());
        own.bytes = own.bytes.saturating_add(bytes);
        let slot = Slot {
            number,
            created: Instant::now(),
            bytes,
            context: Some(Arc::new(context)),
        };
        kept.by_id.insert(key, slot);
        self.active.inc();
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::clone(self)));
        }
        drop(kept);
        container.state_or_init(|| {
            let (contexts, ended) = (Arc::clone(self), container.ended().clone());
            tokio::spawn(async move {
                ended.cancelled().await;
                contexts.end(lease);
            });
            EndsWithLease
        });
        if container.has_ended() {
            self.end(lease);
        }
    }

    /// The context of a lease with this id.
    pub fn find(
        &self,
        lease: LeaseId,
        id: &str,
        ttl: Duration,
    ) -> Result<Arc<RequestContext>, NoContext> {
        self.kept.lock().find(&(lease, id.into()), ttl)
    }

    /// Takes the context out if it passes `check`. Otherwise it stays as it is, so that a repetition
    /// of the question gets the same answer.
    pub fn take(
        &self,
        lease: LeaseId,
        id: &str,
        ttl: Duration,
        check: impl FnOnce(&RequestContext) -> Result<(), NoContext>,
    ) -> Result<Arc<RequestContext>, NoContext> {
        let key = (lease, id.into());
        let mut kept = self.kept.lock();
        let found = kept.find(&key, ttl)?;
        check(&found)?;
        self.drop_slot(&mut kept, &key);
        Ok(found)
    }

    /// Removes a context: another request has its id.
    pub fn remove(&self, lease: LeaseId, id: &str) {
        self.drop_slot(&mut self.kept.lock(), &(lease, id.into()));
    }

    fn end(&self, lease: LeaseId) {
        let mut kept = self.kept.lock();
        let own = kept.leases.get(&lease).map(|own| own.ids.clone());
        for id in own.unwrap_or_default().into_values() {
            self.drop_slot(&mut kept, &(lease, id));
        }
    }

    /// Forgets what has expired. Returns the time until the next look; `None` if nothing is kept.
    fn expire(&self) -> Option<Duration> {
        let mut kept = self.kept.lock();
        let ttl = kept.ttl;
        for (_, key) in kept.older_than(ttl.saturating_mul(2), 0) {
            self.drop_slot(&mut kept, &key);
        }
        for (number, key) in kept.older_than(ttl, kept.expired) {
            self.forget(&mut kept, &key);
            kept.expired = number.wrapping_add(1);
        }
        if kept.order.is_empty() {
            kept.is_swept = false;
            return None;
        }
        Some((ttl / 4).max(LEAST_SWEEP))
    }

    /// Forgets all but the id of a context.
    fn forget(&self, kept: &mut Kept, key: &Key) {
        let Some(slot) = kept.by_id.get_mut(key) else {
            return;
        };
        if slot.context.take().is_some() {
            let left = bytes_of_id(&key.1);
            let freed = slot.bytes.saturating_sub(left);
            slot.bytes = left;
            kept.free(key.0, freed);
            self.active.dec();
        }
    }

    fn evict(&self, kept: &mut Kept, key: &Key) {
        let is_live = kept.by_id.get(key).is_some_and(|one| one.context.is_some());
        if let Some(own) = kept.leases.get(&key.0).filter(|_| is_live) {
            evicted(&own.container);
        }
        self.drop_slot(kept, key);
    }

    fn drop_slot(&self, kept: &mut Kept, key: &Key) {
        self.forget(kept, key);
        let Some(slot) = kept.by_id.remove(key) else {
            return;
        };
        kept.free(key.0, slot.bytes);
        kept.order.remove(&slot.number);
        if let Some(own) = kept.leases.get_mut(&key.0) {
            own.ids.remove(&slot.number);
            if own.ids.is_empty() {
                kept.leases.remove(&key.0);
            }
        }
    }
}

impl Kept {
    fn find(&self, key: &Key, ttl: Duration) -> Result<Arc<RequestContext>, NoContext> {
        let slot = self.by_id.get(key).ok_or(NoContext::Unknown)?;
        let live = slot.context.as_ref();
        let live = live.filter(|_| slot.created.elapsed() < ttl);
        live.cloned().ok_or(NoContext::Expired)
    }

    /// The contexts from this number on that are at least this old.
    fn older_than(&self, age: Duration, from: u64) -> Vec<(u64, Key)> {
        let is_older = |(_, key): &(&u64, &Key)| {
            let slot = self.by_id.get(*key);
            slot.is_none_or(|slot| slot.created.elapsed() >= age)
        };
        let older = self.order.range(from..).take_while(is_older);
        older.map(|(number, key)| (*number, key.clone())).collect()
    }

    fn free(&mut self, lease: LeaseId, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(own) = self.leases.get_mut(&lease) {
            own.bytes = own.bytes.saturating_sub(bytes);
        }
    }
}

async fn sweep(contexts: Arc<Contexts>) {
    while let Some(pause) = contexts.expire() {
        sleep(pause).await;
    }
}

fn evicted(container: &ContainerId) {
    warn("contexts", Subject::Context, |left_out| {
        tracing::warn!(%container, left_out, "too many request contexts: the oldest one is removed");
    });
}

#[cfg(test)]
mod tests;
