//! One connection of a sandbox: who it is, and what it keeps while it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::{Client, Code, Container, Denial, Flow, Principal, Verdict, names};
use parking_lot::Mutex;
use prometheus::IntGauge;
use time::OffsetDateTime;

use super::Engine;
use super::permission::Permission;
use super::workers::Assignment;
use crate::http::idle::{IdleTracker, Timeouts};
use crate::snapshot::Snapshot;
use crate::upstream::{Http1, LeasePool};

/// Upstream connections that one client connection keeps to itself. HTTP/1.1 clients use one;
/// HTTP/2 clients with many streams to an HTTP/1.1 upstream use several.
const MAX_KEPT: usize = 8;
/// How often a connection is looked at once the process stops.
const STOP_LOOK: Duration = Duration::from_millis(200);
/// Connections of addresses that nobody registered, all together. They get one answer each.
const MAX_UNKNOWN_SOURCE_CONNECTIONS: usize = 256;
/// Connections over a cap that are still told why; those over that are closed unread.
const REFUSALS: usize = 64;

/// A client connection. Its counts go down when the last part that holds it is gone, a tunnel
/// or a WebSocket included.
pub struct Connection {
    pub engine: Arc<Engine>,
    pub client: Client,
    /// Who was registered at the address when the connection was made. Re-checked for every
    /// flow; the lease's end ends the connection.
    pub container: Option<Arc<Container>>,
    /// The principal of every flow on this connection.
    pub principal: Option<Principal>,
    /// Why nothing may begin on it, if so.
    pub refusal: Option<Denial>,
    /// Where it is served, with all that comes of it.
    pub assignment: Assignment,
    pub idle: Arc<IdleTracker>,
    pub timeouts: Timeouts,
    /// What the request in hand was permitted, where each may go elsewhere.
    pub in_hand: Mutex<Option<Permission>>,
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    kept: Mutex<Vec<Box<Http1>>>,
    _counted: ConnectionGuard,
}

impl Connection {
    /// Counts the connection and finds out who it is; `None` where there are so many already
    /// that it is not even told so.
    pub fn admit(engine: Arc<Engine>, snapshot: &Snapshot, client: Client) -> Option<Self> {
        let container = identify(snapshot, &client);
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
        // With few descriptors, one container gets at most half of the connections.
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
            // There will be one answer.
            timeouts.idle = timeouts.header;
        }
        let assignment = engine.workers.assign(container.as_deref());
        Some(Self {
            client,
            principal: container.clone().map(Principal::from),
            container,
            refusal,
            assignment,
            idle: Arc::new(IdleTracker::new()),
            timeouts,
            in_hand: Mutex::default(),
            kept: Mutex::default(),
            _counted: counted,
            engine,
        })
    }

    /// Holds a flow to the lease that this connection is bound to, so that it ends with the
    /// lease. A container that was registered after its connection was made must make another.
    pub fn is_bound(&self, flow: &Flow) -> Verdict {
        let bound = self.container.as_ref().map(|container| container.lease);
        if flow.known_container().map(|container| container.lease) == bound {
            return Ok(());
        }
        Err(Denial::new(Code::UnknownSource, "Unknown source IP").by(names::PROXY))
    }

    /// Whether the lease still holds: what broke off with it is nobody's fault.
    pub fn is_live(&self) -> Verdict {
        match &self.container {
            Some(container) if container.has_ended() => {
                Err(Denial::new(Code::UnknownSource, "Unknown source IP").by(names::PROXY))
            }
            _ => Ok(()),
        }
    }

    /// Takes the upstream connection that was kept for where a flow goes.
    pub fn take_kept(&self, generation: u64, flow: &Flow) -> Option<Box<Http1>> {
        let mut kept = self.kept.lock();
        let at = kept
            .iter()
            .rposition(|one| one.generation == generation && one.target.is_of(flow))?;
        Some(kept.swap_remove(at))
    }

    /// Keeps an upstream connection for the next request.
    pub fn keep(&self, connection: Box<Http1>) {
        if connection.sender.is_closed() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push(connection);
        drop(kept);
        self.idle.keeps_upstream();
    }

    /// Hands idle upstream connections to the lease's pool, where its other connections find
    /// them.
    pub fn hand_back(&self) {
        let Some(container) = &self.container else {
            return;
        };
        let snapshot = self.engine.snapshot();
        let pool = LeasePool::of(container, &snapshot);
        for one in self.kept.lock().drain(..) {
            pool.hand_back(container, one);
        }
    }

    /// Ends when something elsewhere ends it, or what was permitted on it: the lease, a reload
    /// that forbids it, the process. Without a tunnel it is the request in hand that is permitted.
    pub async fn ended(&self, permitted: Option<&Permission>) {
        tokio::select! {
            () = self.revoked(permitted) => {}
            () = self.lease_ended() => {}
            () = self.stopped_idle() => {}
            () = self.engine.killed.cancelled() => {}
        }
    }

    /// Ends once the process stops and nothing is under way here. A client that asked for nothing
    /// is not waited for; what arrived together with the signal still has its look at.
    async fn stopped_idle(&self) {
        self.engine.stopping.cancelled().await;
        loop {
            tokio::time::sleep(STOP_LOOK).await;
            if self.idle.is_idle() {
                return;
            }
        }
    }

    /// Ends when the lease does; never where there is none.
    async fn lease_ended(&self) {
        match &self.container {
            Some(container) => container.ended().cancelled().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.engine.stopping.is_cancelled() {
            self.hand_back();
        }
    }
}

/// Who is at the other end. Where there is no answer, the chain asks again for each flow, denies
/// it and gives the reason. A lease that is over binds nothing: the connection would end with it
/// before that reason is told.
fn identify(snapshot: &Snapshot, client: &Client) -> Option<Arc<Container>> {
    let found = snapshot.containers.find(client.source.as_ref()?).ok()??;
    let over = found.has_ended() || found.expired(OffsetDateTime::now_utc());
    (!over).then_some(found)
}

/// How many connections are open.
#[derive(Default)]
pub struct ConnectionCount(AtomicUsize);

/// Counts a connection where it belongs, for as long as it is open.
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
