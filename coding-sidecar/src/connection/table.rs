//! The limit of connections: at the limit, a new connection replaces one without a running request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The most concurrent connections. Each has a buffer and a descriptor. All connections and
/// commands together have fewer than 1,024 descriptors, the usual limit of a process.
pub const CONNECTIONS_MAX: usize = 256;

/// All open connections. At the limit, a new connection evicts one that runs no request, in this
/// order:
///
/// 1. a connection on which no request has passed the check of the token,
/// 2. an idle connection,
/// 3. a connection that receives a body.
///
/// Among several of one kind, the one whose state changed the longest ago is evicted.
#[derive(Default)]
pub struct Connections {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Counts the state changes of all connections, to order the changes.
    clock: u64,
    entries: Vec<Entry>,
}

struct Entry {
    id: u64,
    /// Whether a request of the connection passed the check of the token.
    admitted: bool,
    /// Whether the body of an admitted request is being received.
    receiving: bool,
    /// The number of running requests. It may briefly exceed 1, if the next request arrives before
    /// the previous command has been cleaned up.
    requests: usize,
    /// The value of `clock` at the latest of these events: the connection was accepted, a body
    /// began or ended, or a request ended.
    since: u64,
    close: Arc<Notify>,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    /// Removes the entry to evict and returns the notification that closes its connection; `None`
    /// if every connection runs a request.
    fn evict(&mut self) -> Option<Arc<Notify>> {
        let entries = self.entries.iter().enumerate();
        let (oldest, _) = entries
            .filter(|(_, entry)| entry.requests == 0)
            .min_by_key(|(_, entry)| (entry.receiving, entry.admitted, entry.since))?;
        Some(self.entries.swap_remove(oldest).close)
    }
}

impl Connections {
    /// Adds a new connection, evicting another one at the limit. Returns `None` if all
    /// [`CONNECTIONS_MAX`] connections run requests. Clients that send slowly or nothing are
    /// evicted, so they cannot keep others out.
    pub fn enter(self: &Arc<Self>) -> Option<Connection> {
        let mut table = self.lock();
        if table.entries.len() >= CONNECTIONS_MAX {
            table.evict()?.notify_one();
        }
        let id = table.tick();
        let close = Arc::new(Notify::new());
        table.entries.push(Entry {
            id,
            admitted: false,
            receiving: false,
            requests: 0,
            since: id,
            close: close.clone(),
        });
        Some(Connection {
            all: self.clone(),
            id,
            close,
        })
    }

    /// Evicts all connections, also those that run requests, whose commands then end.
    pub fn evict_all(&self) {
        for entry in &self.lock().entries {
            entry.close.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of one connection in the table. Dropping this value removes the entry.
pub struct Connection {
    all: Arc<Connections>,
    id: u64,
    close: Arc<Notify>,
}

impl Connection {
    /// Waits until the connection is evicted; then the caller must close it.
    pub async fn evicted(&self) {
        self.close.notified().await;
    }

    /// Marks the connection as admitted and as receiving a body. Connections that are not admitted
    /// are evicted before this one. Idle connections are also evicted before it, until the returned
    /// value is dropped.
    pub fn receiving(self: &Arc<Self>) -> Receiving {
        self.update(|entry, now| {
            entry.admitted = true;
            entry.receiving = true;
            entry.since = now;
        });
        Receiving(self.clone())
    }

    /// Protects the connection from eviction until the returned value is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.update(|entry, _| entry.requests = entry.requests.saturating_add(1));
        Busy(self.clone())
    }

    fn update(&self, change: impl FnOnce(&mut Entry, u64)) {
        let mut table = self.all.lock();
        let now = table.tick();
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.id == self.id) {
            change(entry, now);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().entries.retain(|entry| entry.id != self.id);
    }
}

/// Marks a connection as receiving a body. This lasts at most for the server's time limit for
/// bodies.
pub struct Receiving(Arc<Connection>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.update(|entry, now| {
            entry.receiving = false;
            entry.since = now;
        });
    }
}

/// Marks a connection as running a request.
pub struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.update(|entry, now| {
            entry.requests = entry.requests.saturating_sub(1);
            entry.since = now;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the connection was evicted.
    async fn is_evicted(connection: &Connection) -> bool {
        tokio::select! {
            biased;
            () = connection.evicted() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn the_connection_that_is_idle_for_the_longest_is_evicted() {
        let all = Arc::new(Connections::default());
        let open: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| Arc::new(all.enter().unwrap()))
            .collect();
        // The first connection runs a request; the second has run one, so the third has been idle
        // for the longest.
        let busy = open[0].busy();
        drop(open[0].busy());
        drop(open[1].busy());
        let newer = all.enter().unwrap();
        assert!(is_evicted(&open[2]).await);
        for kept in [0, 1, 3, CONNECTIONS_MAX - 1] {
            assert!(!is_evicted(&open[kept]).await, "{kept}");
        }
        assert_eq!(all.lock().entries.len(), CONNECTIONS_MAX);
        drop((newer, busy));
    }

    #[tokio::test]
    async fn clients_that_are_not_admitted_are_evicted_before_admitted_ones() {
        let all = Arc::new(Connections::default());
        let served = Arc::new(all.enter().unwrap());
        drop(served.receiving());
        let sender = Arc::new(all.enter().unwrap());
        let receiving = sender.receiving();
        let mut others = std::collections::VecDeque::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            others.push_back(all.enter().unwrap());
            if others.len() > CONNECTIONS_MAX - 2 {
                let oldest = others.pop_front().unwrap();
                assert!(is_evicted(&oldest).await);
            }
        }
        assert!(!is_evicted(&served).await);
        assert!(!is_evicted(&sender).await);
        // Once all others are busy, the admitted client that is idle is evicted before the one that
        // sends a body.
        let others: Vec<_> = others.into_iter().map(Arc::new).collect();
        let busy: Vec<_> = others.iter().map(|other| other.busy()).collect();
        let newest = Arc::new(all.enter().unwrap());
        assert!(is_evicted(&served).await);
        let second = newest.busy();
        assert!(all.enter().is_some());
        assert!(is_evicted(&sender).await);
        drop((receiving, busy, second));
    }

    #[tokio::test]
    async fn a_connection_that_runs_a_request_is_never_evicted() {
        let all = Arc::new(Connections::default());
        let open: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| Arc::new(all.enter().unwrap()))
            .collect();
        let mut busy: Vec<_> = open.iter().map(|connection| connection.busy()).collect();
        assert!(all.enter().is_none());
        busy.pop();
        assert!(all.enter().is_some());
        drop(busy);
        drop(open);
        assert!(all.lock().entries.is_empty());
    }
}
