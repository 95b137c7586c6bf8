//! The bound on connections: one that has nothing to do makes room for a new one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Connections at once. Each holds a buffer and a descriptor; with the descriptors of commands
/// they stay below 1,024, the usual limit of a process.
pub const CONNECTIONS_MAX: usize = 256;

/// All open connections. Those whose client was never admitted make room first, then idle ones, then
/// those that receive a body; of each the oldest.
#[derive(Default)]
pub struct Connections {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Counts up with each change of a connection's state, to order them.
    clock: u64,
    entries: Vec<Entry>,
}

struct Entry {
    id: u64,
    /// Whether a request of the connection had the token, or needed none.
    admitted: bool,
    /// Whether the body of an admitted request is on its way.
    receiving: bool,
    /// Requests under way. More than one for a moment, when the next one is there before the last
    /// command has been cleaned up.
    requests: usize,
    /// When the connection was entered, or its last body or request began or ended.
    since: u64,
    close: Arc<Notify>,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    /// Removes the entry that is worth the least.
    fn evict(&mut self) -> Option<Arc<Notify>> {
        let idle = self.entries.iter().enumerate();
        let (oldest, _) = idle
            .filter(|(_, entry)| entry.requests == 0)
            .min_by_key(|(_, entry)| (entry.receiving, entry.admitted, entry.since))?;
        Some(self.entries.swap_remove(oldest).close)
    }
}

impl Connections {
    /// Enters a new connection. `None` where [`CONNECTIONS_MAX`] requests are under way; clients which
    /// send slowly or never cannot keep others out.
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection. Dropping it gives the place back.
pub struct Connection {
    all: Arc<Connections>,
    id: u64,
    close: Arc<Notify>,
}

impl Connection {
    /// Completes when the connection has to make room for another.
    pub async fn evicted(&self) {
        self.close.notified().await;
    }

    /// Admits the client: the connection makes room only after those of clients that were not, and
    /// until the value is dropped only after idle ones.
    pub fn receiving(self: &Arc<Self>) -> Receiving {
        self.update(|entry, now| {
            entry.admitted = true;
            entry.receiving = true;
            entry.since = now;
        });
        Receiving(self.clone())
    }

    /// Keeps the connection from making room until the value is dropped.
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

/// A body on its way. The time limit of bodies bounds it.
pub struct Receiving(Arc<Connection>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.update(|entry, now| {
            entry.receiving = false;
            entry.since = now;
        });
    }
}

/// A request under way.
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

    /// Whether the connection was told to close.
    async fn told(connection: &Connection) -> bool {
        tokio::select! {
            biased;
            () = connection.evicted() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn the_connection_that_is_idle_for_the_longest_makes_room() {
        let all = Arc::new(Connections::default());
        let open: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| Arc::new(all.enter().unwrap()))
            .collect();
        // The first runs a request; the second ran one, so the third is idle for longer.
        let busy = open[0].busy();
        drop(open[0].busy());
        drop(open[1].busy());
        let newer = all.enter().unwrap();
        assert!(told(&open[2]).await);
        for kept in [0, 1, 3, CONNECTIONS_MAX - 1] {
            assert!(!told(&open[kept]).await, "{kept}");
        }
        assert_eq!(all.lock().entries.len(), CONNECTIONS_MAX);
        drop((newer, busy));
    }

    #[tokio::test]
    async fn clients_without_a_request_make_room_for_each_other_alone() {
        let all = Arc::new(Connections::default());
        let served = Arc::new(all.enter().unwrap());
        drop(served.receiving());
        let sender = Arc::new(all.enter().unwrap());
        let receiving = sender.receiving();
        let mut strangers = std::collections::VecDeque::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            strangers.push_back(all.enter().unwrap());
            if strangers.len() > CONNECTIONS_MAX - 2 {
                let oldest = strangers.pop_front().unwrap();
                assert!(told(&oldest).await);
            }
        }
        assert!(!told(&served).await);
        assert!(!told(&sender).await);
        // Among clients that were admitted, the idle ones are first.
        let admitted: Vec<_> = strangers.into_iter().map(Arc::new).collect();
        let busy: Vec<_> = admitted.iter().map(|stranger| stranger.busy()).collect();
        let newest = Arc::new(all.enter().unwrap());
        assert!(told(&served).await);
        let second = newest.busy();
        assert!(all.enter().is_some());
        assert!(told(&sender).await);
        drop((receiving, busy, second));
    }

    #[tokio::test]
    async fn a_request_under_way_never_makes_room() {
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
