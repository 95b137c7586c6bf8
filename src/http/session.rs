//! The state that the exchanges of one client connection share.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    Client, Container, Denial, Endpoint, Flow, FlowStart, Kind, Principal, Verdict, names,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::idle::{IdleTracker, Timeouts};
use super::inspection::Inspection;
use super::permission::Permission;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::upstream::{Http1, LeasePool};

/// Limit on the idle HTTP/1.1 upstream connections that one client connection keeps. An HTTP/1.1
/// client uses one for each destination. An HTTP/2 client with many streams to an HTTP/1.1 upstream
/// uses several.
const MAX_KEPT: usize = 8;
/// Interval at which a connection is checked for idleness during a shutdown.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The state that the exchanges of all connections share.
pub struct Service {
    pub snapshots: Arc<SnapshotStore>,
    /// Memory and threads for buffered bodies.
    pub inspection: Arc<Inspection>,
    /// The tasks of all connections, tunnels and WebSockets. A shutdown waits for them.
    pub tasks: TaskTracker,
    /// Cancelled when the shutdown begins. The listeners then accept no further connection.
    pub stopping: CancellationToken,
    /// Cancelled after `shutdown_timeout`, to end the tasks that still run.
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

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.current()
    }
}

/// The state of one client connection: its container, its activity, and the upstream connections
/// that it keeps. The connection and each of its tunnels, WebSockets and response bodies hold a
/// reference to this state. [`super::OwnClient`] makes a session for each request.
pub struct Session {
    pub service: Arc<Service>,
    pub client: Client,
    /// The container that was registered for the source when the connection was made; `None` for an
    /// unknown source. [`Session::is_bound`] compares it with the container of each flow; the end
    /// of its lease closes the connection.
    pub container: Option<Arc<Container>>,
    /// The principal of every flow on this connection; `None` for an unknown source.
    pub principal: Option<Principal>,
    /// The denial of every request, if too many connections were open when this connection was
    /// made; `None` if the chain judges the requests.
    pub refusal: Option<Denial>,
    pub idle: Arc<IdleTracker>,
    pub timeouts: Timeouts,
    /// The permission of the latest request, if that request was in absolute form; `None` before
    /// the first request, while the chain judges the destination, and after a request in origin form
    /// or a CONNECT. The request may be under way or answered. The permission is judged again after a reload, a change of the security level
    /// and the end of a grant.
    pub latest_permission: Mutex<Option<Permission>>,
    #[expect(clippy::vec_box, reason = "callers hold them in boxes")]
    kept: Mutex<Vec<Box<Http1>>>,
    /// Guards of the ingress, which count the connection until the session is dropped.
    _counted: Box<dyn Any + Send + Sync>,
}

impl Session {
    /// Makes the state of a connection of a container, or of an unknown source if `container` is
    /// `None`. `counted` is dropped with the session.
    pub fn new(
        service: Arc<Service>,
        client: Client,
        container: Option<Arc<Container>>,
        principal: Option<Principal>,
        refusal: Option<Denial>,
        timeouts: Timeouts,
        counted: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            service,
            client,
            container,
            principal,
            refusal,
            idle: Arc::new(IdleTracker::new()),
            timeouts,
            latest_permission: Mutex::default(),
            kept: Mutex::default(),
            _counted: counted,
        }
    }

    /// The same connection, for a request of this container. The container of a connection is known by
    /// its source; that of such a request is known by its token.
    pub fn for_container(self: &Arc<Self>, container: Arc<Container>) -> Arc<Self> {
        Arc::new(Self {
            service: Arc::clone(&self.service),
            client: self.client.clone(),
            principal: Some(Arc::clone(&container).into()),
            container: Some(container),
            refusal: self.refusal.clone(),
            idle: Arc::clone(&self.idle),
            timeouts: self.timeouts,
            latest_permission: Mutex::default(),
            kept: Mutex::default(),
            _counted: Box::new(Arc::clone(self)),
        })
    }

    /// The start of a flow of this connection to an endpoint.
    pub fn start(&self, snapshot: &Snapshot, kind: Kind, endpoint: Endpoint) -> FlowStart {
        let client = self.client.clone();
        let mut start = snapshot.chain().to_upstream(kind, client, endpoint);
        start.principal = self.principal.clone();
        start
    }

    /// Denies a flow whose container is not the container of this connection. The lease may have
    /// ended since the connection was made, or the container may have been registered later. The
    /// client must open a new connection.
    pub fn is_bound(&self, flow: &Flow) -> Verdict {
        match (&self.container, flow.known_container()) {
            (Some(bound), Some(found)) if Arc::ptr_eq(bound, found) => Ok(()),
            (None, None) => Ok(()),
            _ => Err(self.unknown_source()),
        }
    }

    /// The lease that owns the upstream connections and the memory for bodies; a denial for an
    /// unknown source.
    pub fn owner(&self) -> Result<&Arc<Container>, Denial> {
        let container = self.container.as_ref();
        container.ok_or_else(|| self.unknown_source())
    }

    /// The denial of a flow on this connection whose container is not the connection's.
    pub fn unknown_source(&self) -> Denial {
        Denial::unknown_source(self.client.source.as_ref()).by(names::PROXY)
    }

    /// Denies if the lease has ended. Called for an aborted request before its client or its
    /// upstream is recorded as the cause, since the end of the lease may have aborted it.
    pub fn is_live(&self) -> Verdict {
        match &self.container {
            Some(container) if container.has_ended() => Err(self.unknown_source()),
            _ => Ok(()),
        }
    }

    /// Takes a kept upstream connection to the destination of `flow` that was dialled under the
    /// configuration `generation`; `None` if there is none.
    pub fn take_kept(&self, generation: u64, flow: &Flow) -> Option<Box<Http1>> {
        let endpoint = flow.endpoint()?;
        let mut kept = self.kept.lock();
        let at = kept
            .iter()
            .rposition(|one| one.generation == generation && one.endpoint == *endpoint)?;
        Some(kept.swap_remove(at))
    }

    /// Keeps an upstream connection for the next request, unless it is closed. If [`MAX_KEPT`]
    /// connections are kept already, closes one of them.
    pub fn keep(&self, connection: Box<Http1>) {
        if connection.sender.is_closed() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push(connection);
    }

    /// Moves the kept upstream connections to the lease's pool, for the other client connections of
    /// the lease.
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

    /// Returns when the connection must be closed, for one of these reasons:
    ///
    /// - The lease has ended.
    /// - The process stops and the connection is idle.
    /// - `shutdown_timeout` has passed since the process began to stop.
    /// - A reload, the security level or the end of a grant revokes a permission: `permitted`, that
    ///   of a tunnel or a WebSocket. If `permitted` is `None`, this is [`Session::latest_permission`].
    pub async fn ended(&self, permitted: Option<&Permission>) {
        tokio::select! {
            () = self.revoked(permitted) => {}
            () = self.lease_ended() => {}
            () = self.stopped_idle() => {}
            () = self.service.killed.cancelled() => {}
        }
    }

    /// Returns once the process stops and the connection is idle. The first check is
    /// [`STOP_CHECK_INTERVAL`] after the signal, so that a request that arrived together with the
    /// signal is served.
    async fn stopped_idle(&self) {
        self.service.stopping.cancelled().await;
        loop {
            tokio::time::sleep(STOP_CHECK_INTERVAL).await;
            if self.idle.is_idle() {
                return;
            }
        }
    }

    /// Returns when the lease ends; never if there is no lease.
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
