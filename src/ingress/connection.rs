//! A client connection: counted, limited, and assigned to a thread.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use addons::contract::{Client, Code, Container, Delegation, Denial, Principal};
use prometheus::IntGauge;
use time::OffsetDateTime;
use tokio::runtime::Handle;

use super::Engine;
use crate::http::{Session, Timeouts};
use crate::snapshot::Snapshot;

/// The most connections of all unknown sources together, fewer if file descriptors are few. Those of
/// callers with the token of the MCP gateway are among them, since the token comes later.
const MAX_UNKNOWN_SOURCE_CONNECTIONS: usize = 256;
/// If a limit is reached, this many further connections get a denial, fewer if file descriptors are
/// few. All connections after them are closed unread.
const REFUSALS: usize = 64;

/// A client connection and its engine. The connection is counted until the last of its tunnels,
/// WebSockets and response bodies has dropped the session.
#[derive(Clone)]
pub struct Connection {
    pub engine: Arc<Engine>,
    pub session: Arc<Session>,
}

impl Deref for Connection {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Connection {
    /// Counts the connection, identifies its container and assigns it to a thread. `None` if it
    /// must be closed without a response, because too many are open.
    pub fn admit(
        engine: Arc<Engine>,
        snapshot: &Snapshot,
        client: Client,
    ) -> Option<(Self, Handle)> {
        let container = identify(snapshot, &client);
        let principal = container.clone().map(Principal::from);
        Self::assign(engine, snapshot, client, principal)
    }

    /// Admits a connection of a process that the appliance runs for a container, and counts it as a
    /// connection of this container. Returns `None` as [`Connection::admit`] does.
    pub fn admit_delegated(
        engine: Arc<Engine>,
        snapshot: &Snapshot,
        delegation: &Arc<Delegation>,
    ) -> Option<(Self, Handle)> {
        let client = Client {
            source: Some(delegation.lease.source.clone()),
            peer: None,
        };
        let principal = Principal::Delegated(Arc::clone(delegation));
        Self::assign(engine, snapshot, client, Some(principal))
    }

    fn assign(
        engine: Arc<Engine>,
        snapshot: &Snapshot,
        client: Client,
        principal: Option<Principal>,
    ) -> Option<(Self, Handle)> {
        let lease = principal.as_ref().and_then(Principal::lease);
        let container = lease.map(|lease| Arc::<Container>::clone(lease));
        let limits = &snapshot.config.proxy.limits;
        let mut timeouts = Timeouts::from(&snapshot.config.proxy);
        let share = match &container {
            Some(container) => Arc::clone(container.state_or_init(Arc::<ConnectionCount>::default)),
            None => Arc::clone(&engine.unknown_sources),
        };
        let counted = ConnectionGuard::enter(
            [Arc::clone(&engine.connections), share],
            engine.metrics.active_connections.clone(),
        );
        let [overall, own] = counted.numbers();
        let granted = engine.most_connections;
        let refusals = REFUSALS.min(granted / 4);
        // A container gets at most half of the connections that the file descriptors allow.
        let own_limit = match container {
            Some(_) => limits
                .max_connections_per_container
                .min(granted.div_ceil(2)),
            None => MAX_UNKNOWN_SOURCE_CONNECTIONS.min(granted.div_ceil(8)),
        };
        let most = limits.max_connections.min(granted - refusals);
        if overall > most + refusals || own > own_limit + refusals {
            return None;
        }
        let over = overall > most || own > own_limit;
        let refusal = over.then(|| Denial::new(Code::TooManyConnections, "Too many connections"));
        if over || container.is_none() {
            // Such a connection gets one response, for which the header timeout is long enough.
            timeouts.idle = timeouts.header;
        }
        let assignment = engine.workers.assign(container.as_deref());
        let runtime = assignment.runtime.clone();
        let session = Session::new(
            Arc::clone(&engine.service),
            client,
            container,
            principal,
            refusal,
            timeouts,
            Box::new((counted, assignment)),
        );
        let session = Arc::new(session);
        Some((Self { engine, session }, runtime))
    }
}

/// Finds the container of a client; `None` if none is registered or the registry cannot be read.
/// The chain then looks for the container again in each flow, and denies the flow with the reason.
/// `None` also if the container's lease has ended or expired: the session would otherwise end with
/// the lease, before the client reads that denial.
fn identify(snapshot: &Snapshot, client: &Client) -> Option<Arc<Container>> {
    let found = snapshot.containers.find(client.source.as_ref()?).ok()??;
    found.is_live(OffsetDateTime::now_utc()).then_some(found)
}

/// A number of open connections.
#[derive(Default)]
pub struct ConnectionCount(AtomicUsize);

/// Counts a connection overall, and for its container or for all unknown sources, until this is
/// dropped.
struct ConnectionGuard {
    counts: [Arc<ConnectionCount>; 2],
    gauge: IntGauge,
}

impl ConnectionGuard {
    fn enter(counts: [Arc<ConnectionCount>; 2], gauge: IntGauge) -> Self {
        for count in &counts {
            count.0.fetch_add(1, Ordering::Relaxed);
        }
        gauge.inc();
        Self { counts, gauge }
    }

    fn numbers(&self) -> [usize; 2] {
        self.counts
            .each_ref()
            .map(|count| count.0.load(Ordering::Relaxed))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        for count in &self.counts {
            count.0.fetch_sub(1, Ordering::Relaxed);
        }
        self.gauge.dec();
    }
}
