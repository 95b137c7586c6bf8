//! The upstream connections of one lease.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::circuit_breaker::SharedFault;
use addons::contract::{Container, Denial, Endpoint, LiveFlow, Principal, ResolvePermit};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::connect::{DialError, open_http};
use super::{Http1, Http2, Network, Upstream};
use crate::runtime::pause;

/// Limit on the idle HTTP/1.1 connections that are kept for one endpoint. Further connections are
/// closed. So an MCP mount (a server behind the gateway) with more concurrent calls than this
/// limit opens new connections again and again.
const MAX_IDLE: usize = 32;
/// How long an idle connection is kept, checked every 15 s. Most servers close idle connections
/// after a minute.
const IDLE_LIFETIME: Duration = Duration::from_secs(30);
/// How long a connection may have been idle to be used for a request of the proxy itself, such as
/// the call of an MCP tool. Such a request must not be sent twice, so it is not sent on a connection
/// that the upstream may be closing. uvicorn closes a connection that was idle for 5 seconds,
/// gunicorn for 2. If the upstream said for how long it keeps connections, half of that time counts.
const OWN_IDLE: Duration = Duration::from_secs(1);
/// How long an HTTP/2 connection without new requests is kept. Its open streams go on after that.
const HTTP2_LIFETIME: Duration = Duration::from_secs(120);
/// How long a connection may take to be ready for its next request. The previous response has been
/// read to its end, so one poll of the driver is normally enough.
const READY: Duration = Duration::from_millis(100);
/// Limit on the endpoints of a lease that are known to send long response heads. A further one
/// replaces all of them; they are learned again.
const MAX_LONG_HEADS: usize = 64;

/// The kind of connection that an exchange can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// HTTP/1.1, idle or new; HTTP/2 if the endpoint does not speak HTTP/1.1.
    Http1,
    /// HTTP/1.1 on a new connection.
    Websocket,
    /// A stream of the endpoint's HTTP/2 connection; HTTP/1.1 if the endpoint has no HTTP/2.
    Http2,
}

/// Pooled connections and TLS sessions of one lease under one configuration.
///
/// No other lease uses them. After a reload a new pool takes over, since the new configuration may
/// deny addresses that the old one permitted.
pub struct LeasePool {
    generation: u64,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    connections: Mutex<Connections>,
    pruning: AtomicBool,
}

#[derive(Default)]
struct Connections {
    idle: HashMap<Endpoint, Idle>,
    http2: HashMap<Endpoint, Arc<Http2Slot>>,
    /// Endpoints whose responses had more header lines than hyper reads by default.
    long_heads: HashSet<Endpoint>,
}

/// The idle connections to an endpoint.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "callers hold them in boxes")]
struct Idle {
    connections: Vec<Box<Http1>>,
    /// Whether the upstream has served a connection while another one was open. Until then, the
    /// upstream may be a single-threaded server, which leaves a second connection waiting until the
    /// first one is closed.
    serves_several: bool,
}

/// The HTTP/2 connection to an endpoint, if there is one, and the latest failure to dial it.
struct Http2Slot {
    /// Locked while dialling, so that requests that begin together share one connection.
    state: tokio::sync::Mutex<State>,
    /// Whether the endpoint chose HTTP/1.1 when HTTP/2 was offered.
    lacks_http2: AtomicBool,
    used: Mutex<Instant>,
}

#[derive(Default)]
struct State {
    connection: Option<Box<Http2>>,
    /// When a request last took the connection.
    used: Option<Instant>,
    failed: Option<(Instant, Denial)>,
}

impl State {
    /// The open connection. `is_own`: for a request of the proxy itself, which needs one with an
    /// open stream or a recent request.
    fn take(&mut self, is_own: bool) -> Option<Box<Http2>> {
        let present = self.connection.as_ref()?;
        let is_idle = Arc::strong_count(&present.handles) == 1
            && self.used.is_none_or(|used| used.elapsed() >= OWN_IDLE);
        if present.sender.is_closed() || (is_own && is_idle) {
            return None;
        }
        self.used = Some(Instant::now());
        Some(present.clone())
    }

    fn keep(&mut self, connection: &Http2) {
        self.connection = Some(Box::new(connection.clone()));
        self.used = Some(Instant::now());
    }
}

/// The pool for new flows of a lease.
struct Current(Mutex<Arc<LeasePool>>);

impl LeasePool {
    /// Returns the lease's pool for the configuration of `network`, with which the flow began. If
    /// the lease has a pool for a later configuration, returns a new pool for this flow alone.
    pub fn of(container: &Container, network: &Network) -> Arc<Self> {
        let current = container.state_or_init(|| Current(Mutex::new(Self::new(network))));
        let mut current = current.0.lock();
        if current.generation < network.generation {
            *current = Self::new(network);
        }
        if current.generation == network.generation {
            return Arc::clone(&current);
        }
        drop(current);
        Self::new(network)
    }

    fn new(network: &Network) -> Arc<Self> {
        let (http1, http2) = network.tls.for_lease();
        Arc::new(Self {
            generation: network.generation,
            http1,
            http2,
            connections: Mutex::default(),
            pruning: AtomicBool::new(false),
        })
    }

    /// Takes an idle HTTP/1.1 connection for a flow that the chain has permitted. Returns `None` if
    /// no connection is idle, and for a WebSocket. For [`Want::Http2`], takes an idle connection
    /// only if the endpoint is known to lack HTTP/2.
    pub async fn reuse(
        self: &Arc<Self>,
        owner: &Container,
        live: &LiveFlow,
        _permit: &ResolvePermit,
        want: Want,
    ) -> Option<Upstream> {
        let endpoint = live.endpoint()?;
        let takes_http1 = match want {
            Want::Http1 => true,
            Want::Http2 => {
                let slot = self.http2_slot(owner, endpoint);
                slot.lacks_http2.load(Ordering::Relaxed)
            }
            Want::Websocket => false,
        };
        let principal = live.flow.principal.as_ref();
        while takes_http1 && let Some(mut idle) = self.take_idle(endpoint, principal) {
            if ready(&mut idle).await {
                return Some(Upstream::Http1(idle));
            }
        }
        None
    }

    /// A new connection, or a stream of the endpoint's HTTP/2 connection, for a flow that the chain
    /// has permitted and for which no idle connection was found. `owner` is the lease of the pool.
    pub async fn open(
        self: &Arc<Self>,
        owner: &Container,
        live: &mut LiveFlow,
        network: &Network,
        permit: &ResolvePermit,
        want: Want,
    ) -> Result<Upstream, Denial> {
        let endpoint = live.endpoint().ok_or_else(Denial::internal)?;
        let long = self.connections.lock().long_heads.contains(endpoint);
        if want == Want::Http2 {
            let slot = self.http2_slot(owner, endpoint);
            self.ensure_pruning(owner.ended());
            if !slot.lacks_http2.load(Ordering::Relaxed) {
                let by = (owner, network);
                return self.open_http2(&slot, by, live, permit, long).await;
            }
        }
        let config = Arc::clone(&self.http1);
        let mut opened = open_http(owner, live, network, permit, config, long).await;
        if want == Want::Http1 && matches!(opened, Err(DialError::OnlyHttp2)) {
            let config = Arc::clone(&self.http2);
            opened = open_http(owner, live, network, permit, config, long).await;
        }
        opened.map_err(DialError::into_denial)
    }

    /// Lets later connections to an endpoint read up to [`MAX_HEADER_LINES`].
    ///
    /// [`MAX_HEADER_LINES`]: super::MAX_HEADER_LINES
    pub fn expect_long_heads(&self, endpoint: &Endpoint) {
        let mut connections = self.connections.lock();
        if connections.long_heads.len() >= MAX_LONG_HEADS {
            connections.long_heads.clear();
        }
        connections.long_heads.insert(endpoint.clone());
        // The idle connections do not read long heads. They are closed after the lock is released.
        let idle = connections.idle.remove(endpoint);
        drop(connections);
        drop(idle);
    }

    /// Returns the entry for an endpoint's HTTP/2 connection; makes an empty one if there is none.
    /// After the end of the lease, the new entry is not stored: the end empties the pool only once.
    fn http2_slot(&self, container: &Container, endpoint: &Endpoint) -> Arc<Http2Slot> {
        let mut connections = self.connections.lock();
        if let Some(slot) = connections.http2.get(endpoint) {
            *slot.used.lock() = Instant::now();
            return Arc::clone(slot);
        }
        let slot = Arc::new(Http2Slot {
            state: tokio::sync::Mutex::default(),
            lacks_http2: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
        });
        if !container.has_ended() {
            let kept = Arc::clone(&slot);
            connections.http2.insert(endpoint.clone(), kept);
        }
        slot
    }

    /// Returns the endpoint's HTTP/2 connection; dials it if there is none.
    async fn open_http2(
        &self,
        slot: &Http2Slot,
        (owner, network): (&Container, &Network),
        live: &mut LiveFlow,
        permit: &ResolvePermit,
        reads_long_heads: bool,
    ) -> Result<Upstream, Denial> {
        let asked = Instant::now();
        let mut state = slot.state.lock().await;
        if let Some(present) = state.take(is_own(live.flow.principal.as_ref())) {
            return Ok(Upstream::Http2(present));
        }
        // Requests that waited for a dial share its failure: if they dialled one after the other,
        // the last one would wait for all their timeouts.
        if let Some((_, denial)) = state.failed.as_ref().filter(|(at, _)| *at >= asked) {
            live.flow.put_slot(SharedFault);
            return Err(denial.clone());
        }
        let config = Arc::clone(&self.http2);
        let opened = open_http(owner, live, network, permit, config, reads_long_heads).await;
        let upstream = opened
            .map_err(DialError::into_denial)
            .inspect_err(|denial| {
                state.failed = Some((Instant::now(), denial.clone()));
            })?;
        match &upstream {
            Upstream::Http2(fresh) => state.keep(fresh),
            Upstream::Http1(_) => slot.lacks_http2.store(true, Ordering::Relaxed),
        }
        Ok(upstream)
    }

    fn take_idle(&self, endpoint: &Endpoint, principal: Option<&Principal>) -> Option<Box<Http1>> {
        let mut connections = self.connections.lock();
        if is_own(principal) {
            connections.close_old(endpoint);
        }
        let only_here = matches!(principal, Some(Principal::Delegated(_)));
        connections.take(endpoint, only_here)
    }

    /// Whether the pool has an open HTTP/1.1 connection to an endpoint that a request of the proxy
    /// itself may use.
    pub fn has_idle(&self, endpoint: &Endpoint) -> bool {
        let mut connections = self.connections.lock();
        connections.close_old(endpoint);
        let idle = connections.idle.get_mut(endpoint);
        idle.is_some_and(|idle| idle.connections.iter_mut().any(is_open))
    }

    /// Puts a connection back into the pool. The caller must have read the response to its end.
    /// Closes the connection instead if the upstream has closed it, if it was dialled under another
    /// configuration, if the pool is full or if the lease has ended.
    pub fn hand_back(self: &Arc<Self>, container: &Container, mut connection: Box<Http1>) {
        connection.driver.look();
        if connection.sender.is_closed() || self.generation != connection.generation {
            return;
        }
        connection.idle_since = Instant::now();
        // Driver and timer hold a waker of the task that used the connection. An idle connection
        // must not keep that task alive.
        connection.driver.release();
        connection.timer = None;
        // A refused connection is dropped, and so closed, after the lock is released.
        let refused = self.connections.lock().keep(container, connection);
        if refused.is_none() {
            self.ensure_pruning(container.ended());
        }
    }

    /// Starts [`LeasePool::prune`] if it does not run.
    fn ensure_pruning(self: &Arc<Self>, ended: &CancellationToken) {
        if !self.pruning.load(Ordering::Relaxed) && !self.pruning.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).prune(ended.clone()));
        }
    }

    /// Closes connections that were idle for too long, every 15 s until the pool is empty. Closes
    /// all connections when the lease ends.
    async fn prune(self: Arc<Self>, ended: CancellationToken) {
        while pause(IDLE_LIFETIME / 2, &ended).await {
            let mut connections = self.connections.lock();
            connections.prune();
            if connections.idle.is_empty() && connections.http2.is_empty() {
                self.pruning.store(false, Ordering::Relaxed);
                return;
            }
        }
        *self.connections.lock() = Connections::default();
    }
}

impl Connections {
    /// Takes an idle connection, preferably one whose socket this thread's runtime watches: moving
    /// a socket takes four system calls. With `only_here`, takes no connection of another thread if
    /// the upstream serves several connections at once; the caller then dials a new one.
    ///
    /// `only_here` is set for delegated flows: an MCP mount takes a connection for each request, so
    /// it could move a socket for each request. Other flows rarely take from the pool, since a
    /// client connection keeps its upstream connection between requests.
    fn take(&mut self, endpoint: &Endpoint, only_here: bool) -> Option<Box<Http1>> {
        let idle = self.idle.get_mut(endpoint)?;
        let connections = &mut idle.connections;
        let mut taken = match connections.iter().rposition(|one| one.home.is_here()) {
            Some(at) => connections.swap_remove(at),
            None if only_here && idle.serves_several => return None,
            None => connections.pop()?,
        };
        taken.home.move_here();
        Some(taken)
    }

    /// Closes the idle connections to an endpoint that a request of the proxy itself may not use.
    /// They are not left open beside a new one: a single-threaded server would not serve it.
    fn close_old(&mut self, endpoint: &Endpoint) {
        if let Some(idle) = self.idle.get_mut(endpoint) {
            idle.connections.retain(|one| {
                let most = one.keep_alive.map_or(OWN_IDLE, |promised| promised / 2);
                one.idle_since.elapsed() < most.min(IDLE_LIFETIME)
            });
        }
    }

    /// Returns the connection instead of pooling it when the pool is full or the lease has ended.
    /// Ending a lease closes the pooled connections exactly once, so the check must be made here,
    /// under the lock.
    fn keep(&mut self, container: &Container, connection: Box<Http1>) -> Option<Box<Http1>> {
        let lacks_lines =
            !connection.reads_long_heads && self.long_heads.contains(&connection.endpoint);
        if container.has_ended() || lacks_lines {
            return Some(connection);
        }
        let idle = self.idle.entry(connection.endpoint.clone()).or_default();
        idle.serves_several = idle.serves_several || idle.connections.iter_mut().any(is_open);
        if idle.connections.len() >= MAX_IDLE {
            return Some(connection);
        }
        idle.connections.push(connection);
        None
    }

    fn prune(&mut self) {
        self.idle.retain(|_, idle| {
            idle.connections
                .retain_mut(|one| is_open(one) && one.idle_since.elapsed() < IDLE_LIFETIME);
            !idle.connections.is_empty()
        });
        self.http2.retain(|_, slot| {
            // A request that dials the connection, or waits for the dial, holds a second reference
            // and keeps the entry.
            Arc::strong_count(slot) > 1 || slot.used.lock().elapsed() < HTTP2_LIFETIME
        });
    }
}

/// Whether a flow belongs to the proxy itself, on its own behalf or on that of a container.
fn is_own(principal: Option<&Principal>) -> bool {
    matches!(
        principal,
        Some(Principal::Delegated(_) | Principal::System(_))
    )
}

/// Whether an idle connection has not been closed by the upstream.
fn is_open(idle: &mut Box<Http1>) -> bool {
    idle.driver.look();
    !idle.sender.is_closed()
}

/// Waits until the connection can take a request, for 100 ms at most. Returns `false` if the
/// upstream closed it or it is not ready by then.
pub async fn ready(connection: &mut Http1) -> bool {
    let Http1 { sender, driver, .. } = connection;
    driver.look();
    if sender.is_ready() {
        return true;
    }
    let ready = poll_fn(|context| driver.poll(context, |context| sender.poll_ready(context)));
    matches!(timeout(READY, ready).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests;
