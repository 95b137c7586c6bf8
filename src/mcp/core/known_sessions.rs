//! The sessions with servers that a lease used, with the subscriptions and the log level that were
//! sent in each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Caller, LogLevel, Mount, Pooled, ResourceIndex};

/// The resources that a `subscriptions/listen` stream covers besides the lists.
pub(super) type Uris = BTreeSet<Arc<str>>;

/// The sessions that a lease used.
#[derive(Default)]
pub(super) struct KnownSessions(Mutex<Vec<Arc<KnownSession>>>);

/// One session, with the subscriptions and the log level that its server was sent.
pub(super) struct KnownSession {
    pooled: Weak<Pooled>,
    pub mount: Weak<Mount>,
    /// Held while a task sends the server changed subscriptions or a changed level.
    pub updating: tokio::sync::Mutex<()>,
    /// The subscribed URIs that were compared with the server's lists.
    pub compared: Mutex<ComparedUris>,
    /// The resources that a legacy server has a subscription for.
    pub subscribed: Mutex<BTreeSet<Arc<str>>>,
    /// The level of the most recent successful `logging/setLevel`.
    pub level: Mutex<Option<LogLevel>>,
    /// The resources of the `subscriptions/listen` stream; `None` without a stream.
    pub filter: watch::Sender<Option<Uris>>,
}

/// URIs, each with whether an index has it. Without this record, each subscription would compare
/// all URIs of a lease again.
#[derive(Default)]
pub(super) struct ComparedUris {
    index: Option<Arc<ResourceIndex>>,
    uris: BTreeMap<Arc<str>, bool>,
}

impl ComparedUris {
    /// Forgets the URIs that are not in `all`, or all of them if the index is another one. Returns
    /// the URIs that were not compared yet.
    pub fn new_of(&mut self, index: &Arc<ResourceIndex>, all: &Uris) -> Vec<Arc<str>> {
        if !self
            .index
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, index))
        {
            *self = Self::default();
        }
        self.index = Some(Arc::clone(index));
        self.uris.retain(|uri, _| all.contains(uri));
        let is_new = |uri: &&Arc<str>| !self.uris.contains_key(*uri);
        all.iter().filter(is_new).cloned().collect()
    }

    pub fn add(&mut self, uri: Arc<str>, has: bool) {
        self.uris.insert(uri, has);
    }

    /// Whether the index has a URI.
    pub fn has(&self, uri: &str) -> bool {
        self.uris.get(uri).copied().unwrap_or_default()
    }
}

impl KnownSession {
    /// The session; `None` once it has ended.
    pub fn pooled(&self) -> Option<Arc<Pooled>> {
        let pooled = self.pooled.upgrade()?;
        (!pooled.session.ended().is_cancelled()).then_some(pooled)
    }

    fn is(&self, pooled: &Arc<Pooled>) -> bool {
        std::ptr::eq(self.pooled.as_ptr(), Arc::as_ptr(pooled))
    }
}

impl KnownSessions {
    /// Finds or creates the record of a session; `true` if the record is new.
    pub fn get(&self, mount: &Arc<Mount>, pooled: &Arc<Pooled>) -> (Arc<KnownSession>, bool) {
        let mut sessions = self.0.lock();
        if let Some(known) = sessions.iter().find(|known| known.is(pooled)) {
            return (Arc::clone(known), false);
        }
        sessions.retain(|known| known.pooled().is_some());
        let known = Arc::new(KnownSession {
            pooled: Arc::downgrade(pooled),
            mount: Arc::downgrade(mount),
            updating: tokio::sync::Mutex::default(),
            compared: Mutex::default(),
            subscribed: Mutex::default(),
            level: Mutex::default(),
            filter: watch::Sender::new(None),
        });
        sessions.push(Arc::clone(&known));
        (known, true)
    }

    /// The open sessions for clients with the caller's revision and capabilities.
    pub fn open(&self, caller: &Caller) -> Vec<(Arc<KnownSession>, Arc<Pooled>)> {
        let sessions = self.0.lock();
        let open = sessions.iter().filter_map(|known| {
            let pooled = known.pooled().filter(|pooled| pooled.serves(caller))?;
            Some((Arc::clone(known), pooled))
        });
        open.collect()
    }

    /// Forgets all sessions, and ends their `subscriptions/listen` streams.
    pub fn clear(&self) {
        for known in self.0.lock().drain(..) {
            known.filter.send_replace(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_compared_once_with_each_index() {
        let (one, other) = (Arc::<ResourceIndex>::default(), Arc::default());
        let uris = |all: &[&str]| -> Uris { all.iter().map(|uri| Arc::from(*uri)).collect() };
        let mut compared = ComparedUris::default();
        let mut new_of = |index, all: &[&str]| {
            let new = compared.new_of(index, &uris(all));
            for uri in &new {
                compared.add(Arc::clone(uri), true);
            }
            new.len()
        };
        assert_eq!(new_of(&one, &["a", "b"]), 2);
        assert_eq!(new_of(&one, &["a", "b", "c"]), 1);
        assert_eq!(new_of(&one, &["a"]), 0);
        assert_eq!(new_of(&one, &["a", "b"]), 1, "b was forgotten");
        assert_eq!(new_of(&other, &["a", "b"]), 2);
    }
}
