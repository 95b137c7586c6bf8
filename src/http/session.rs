//! What the exchanges of one client connection share.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Client, Code, Container, Denial, Flow, Principal, Verdict, names};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::idle::{IdleTracker, Timeouts};
use super::inspection::Inspection;
use super::permission::Permission;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::upstream::{Http1, LeasePool};

/// Upstream connections that one client connection keeps to itself. HTTP/1.1 clients use one;
/// HTTP/2 clients with many streams to an HTTP/1.1 upstream use several.
const MAX_KEPT: usize = 8;
/// How often a connection is looked at once the process stops.
const STOP_LOOK: Duration = Duration::from_millis(200);

/// What the exchanges of all connections share.
pub struct Service {
    pub snapshots: Arc<SnapshotStore>,
    /// Memory and threads for buffered bodies.
    pub inspection: Arc<Inspection>,
    /// Every connection, tunnel and WebSocket, so that a shutdown can wait for them.
    pub tasks: TaskTracker,
    /// No new requests.
    pub stopping: CancellationToken,
    /// Ends what still runs after `shutdown_timeout`.
    pub killed: CancellationToken,
}

impl Service {
    pub fn new(snapshots: Arc<SnapshotStore>, inspection: Inspection) -> Self {
        Self {
            snapshots,
            inspection: Arc::new(inspection),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            killed: CancellationToken::new(),
        }
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.current()
    }
}

/// One client connection, as its exchanges see it: who it is, when it was last active, and the
/// upstream connections that it keeps. Dropped with the last tunnel, WebSocket or body of it.
pub struct Session {
    pub service: Arc<Service>,
    pub client: Client,
    /// Who was registered at the address when the connection was made. Re-checked for every
    /// flow; the lease's end ends the connection.
    pub container: Option<Arc<Container>>,
    /// The principal of every flow on this connection.
    pub principal: Option<Principal>,
    /// Why nothing may begin on it, if so.
    pub refusal: Option<Denial>,
    pub idle: Arc<IdleTracker>,
    pub timeouts: Timeouts,
    /// What the request in hand was permitted, where each may go elsewhere.
    pub in_hand: Mutex<Option<Permission>>,
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    kept: Mutex<Vec<Box<Http1>>>,
    /// What the ingress counts for as long as the connection is open.
    _counted: Box<dyn Any + Send + Sync>,
}

impl Session {
    /// A connection of a container, or of a source that nobody registered. `counted` is dropped
    /// with the session.
    pub fn new(
        service: Arc<Service>,
        client: Client,
        container: Option<Arc<Container>>,
        refusal: Option<Denial>,
        timeouts: Timeouts,
        counted: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            service,
            client,
            principal: container.clone().map(Principal::from),
            container,
            refusal,
            idle: Arc::new(IdleTracker::new()),
            timeouts,
            in_hand: Mutex::default(),
            kept: Mutex::default(),
            _counted: counted,
        }
    }

    /// Holds a flow to the lease that this connection is bound to, so that it ends with the
    /// lease. A container that was registered after its connection was made must make another.
    pub fn is_bound(&self, flow: &Flow) -> Verdict {
        let is_bound = match (&self.container, flow.known_container()) {
            (Some(bound), Some(found)) => Arc::ptr_eq(bound, found),
            (None, None) => true,
            _ => false,
        };
        if is_bound {
            Ok(())
        } else {
            Err(unknown_source())
        }
    }

    /// The lease that connections to upstreams and memory for bodies belong to.
    pub fn owner(&self) -> Result<&Arc<Container>, Denial> {
        self.container.as_ref().ok_or_else(unknown_source)
    }

    /// Whether the lease still holds: what broke off with it is nobody's fault.
    pub fn is_live(&self) -> Verdict {
        match &self.container {
            Some(container) if container.has_ended() => Err(unknown_source()),
            _ => Ok(()),
        }
    }

    /// Takes the upstream connection that was kept for where a flow goes.
    pub fn take_kept(&self, generation: u64, flow: &Flow) -> Option<Box<Http1>> {
        let endpoint = flow.endpoint()?;
        let mut kept = self.kept.lock();
        let at = kept
            .iter()
            .rposition(|one| one.generation == generation && one.endpoint == *endpoint)?;
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
        let snapshot = self.service.snapshot();
        let pool = LeasePool::of(container, &snapshot.network);
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
            () = self.service.killed.cancelled() => {}
        }
    }

    /// Ends once the process stops and nothing is under way here. A client that asked for nothing
    /// is not waited for; what arrived together with the signal still has its look at.
    async fn stopped_idle(&self) {
        self.service.stopping.cancelled().await;
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

impl Drop for Session {
    fn drop(&mut self) {
        if !self.service.stopping.is_cancelled() {
            self.hand_back();
        }
    }
}

fn unknown_source() -> Denial {
    Denial::new(Code::UnknownSource, "Unknown source IP").by(names::PROXY)
}
