//! The upstream connections of one lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::{Cleared, Container, Denial};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::{Instant, sleep, timeout};

use super::connect::{Dialled, dial};
use super::{Http1, Http2, Target, Upstream};
use crate::proxy::live::LiveFlow;
use crate::world::World;

/// Idle connections kept for one target; what is over is closed.
const MAX_IDLE: usize = 16;
/// How long an idle connection is kept: most servers close theirs after a minute.
const IDLE_LIFETIME: Duration = Duration::from_secs(30);
/// How long a connection that served a request may take to be ready for another one. It has
/// been read to its end, so this is only its task's turn.
const READY: Duration = Duration::from_millis(100);

/// What the exchange can make use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// HTTP/1.1, from the pool if there is one.
    Http1,
    /// HTTP/1.1 on a connection of its own.
    Websocket,
    /// A share of an HTTP/2 connection, else HTTP/1.1.
    Http2,
}

/// Pooled connections, TLS sessions and HTTP/2 shares of one lease; no other lease sees them.
pub struct LeasePool {
    inner: Mutex<Inner>,
    pruning: AtomicBool,
}

struct Inner {
    /// The configuration under which these were dialled; another one may judge otherwise.
    epoch: u64,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    idle: HashMap<Target, Vec<Http1>>,
    shared: HashMap<Target, Arc<Shared>>,
}

/// The one HTTP/2 connection to a target. The lock is held while dialling, so that streams
/// that begin together share one connection.
#[derive(Default)]
struct Shared {
    connection: tokio::sync::Mutex<Option<Http2>>,
    speaks_http1: AtomicBool,
}

impl LeasePool {
    /// The pool of a lease, emptied if the configuration is another one by now.
    pub fn of(container: &Container, world: &World) -> Arc<Self> {
        let pool = container.owned(|| Self {
            inner: Mutex::new(Inner::new(world)),
            pruning: AtomicBool::new(false),
        });
        let mut inner = pool.inner.lock();
        if inner.epoch != world.epoch {
            *inner = Inner::new(world);
        }
        drop(inner);
        pool
    }

    /// A connection for a flow that the chain has cleared.
    pub async fn acquire(
        &self,
        world: &World,
        live: &mut LiveFlow,
        cleared: &Cleared,
        target: &Target,
        want: Want,
    ) -> Result<Upstream, Denial> {
        if want == Want::Http2 {
            let shared = Arc::clone(self.inner.lock().shared.entry(target.clone()).or_default());
            if !shared.speaks_http1.load(Ordering::Relaxed) {
                return self.share(&shared, world, live, cleared, target).await;
            }
        }
        if want != Want::Websocket {
            while let Some(connection) = self.take_idle(target) {
                if let Some(ready) = ready(connection).await {
                    return Ok(Upstream::Http1(ready));
                }
            }
        }
        let config = Arc::clone(&self.inner.lock().http1);
        match dial(world, live, cleared, target, config).await {
            Err(Dialled::OnlyHttp2) if want == Want::Http1 => {
                let config = Arc::clone(&self.inner.lock().http2);
                dial(world, live, cleared, target, config)
                    .await
                    .map_err(Dialled::into_denial)
            }
            other => other.map_err(Dialled::into_denial),
        }
    }

    async fn share(
        &self,
        shared: &Shared,
        world: &World,
        live: &mut LiveFlow,
        cleared: &Cleared,
        target: &Target,
    ) -> Result<Upstream, Denial> {
        let mut connection = shared.connection.lock().await;
        if let Some(present) = connection
            .as_ref()
            .filter(|present| !present.sender.is_closed())
        {
            return Ok(Upstream::Http2(present.clone()));
        }
        let config = Arc::clone(&self.inner.lock().http2);
        let dialled = dial(world, live, cleared, target, config).await;
        let upstream = dialled.map_err(Dialled::into_denial)?;
        match &upstream {
            Upstream::Http2(fresh) => *connection = Some(fresh.clone()),
            Upstream::Http1(_) => shared.speaks_http1.store(true, Ordering::Relaxed),
        }
        Ok(upstream)
    }

    fn take_idle(&self, target: &Target) -> Option<Http1> {
        self.inner.lock().idle.get_mut(target)?.pop()
    }

    /// Takes a connection back that nobody uses for now.
    pub fn hand_back(
        self: &Arc<Self>,
        container: &Arc<Container>,
        epoch: u64,
        target: Target,
        mut connection: Http1,
    ) {
        if connection.sender.is_closed() || container.ended().is_cancelled() {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.epoch != epoch {
            return;
        }
        connection.idle_since = Instant::now();
        let idle = inner.idle.entry(target).or_default();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        drop(inner);
        if !self.pruning.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).prune(container.ended().clone()));
        }
    }

    /// Closes what was idle for too long, until nothing is left; all of it when the lease ends.
    async fn prune(self: Arc<Self>, ended: tokio_util::sync::CancellationToken) {
        loop {
            tokio::select! {
                () = ended.cancelled() => {
                    self.inner.lock().idle.clear();
                    return;
                }
                () = sleep(IDLE_LIFETIME / 2) => {}
            }
            let mut inner = self.inner.lock();
            inner.idle.retain(|_, idle| {
                idle.retain(|one| {
                    one.idle_since.elapsed() < IDLE_LIFETIME && !one.sender.is_closed()
                });
                !idle.is_empty()
            });
            if inner.idle.is_empty() {
                self.pruning.store(false, Ordering::Relaxed);
                return;
            }
        }
    }
}

impl Inner {
    fn new(world: &World) -> Self {
        let (http1, http2) = world.upstream_tls.for_lease();
        Self {
            epoch: world.epoch,
            http1,
            http2,
            idle: HashMap::new(),
            shared: HashMap::new(),
        }
    }
}

/// The connection once it can take a request; `None` where the upstream closed it meanwhile.
pub async fn ready(mut connection: Http1) -> Option<Http1> {
    if connection.sender.is_ready() {
        return Some(connection);
    }
    match timeout(READY, connection.sender.ready()).await {
        Ok(Ok(())) => Some(connection),
        _ => None,
    }
}
