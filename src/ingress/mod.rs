//! The proxy listener: HTTP in absolute form and CONNECT, with TLS interception inside.

mod accept;
pub(crate) mod connection;
mod hello;
#[allow(clippy::module_inception)]
pub(crate) mod ingress;
mod io;
mod leaf;
pub(crate) mod permission;
mod rejected;
mod serve;
mod sniff;
pub(crate) mod tunnel;
mod workers;

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use accept::{serve_tcp, serve_unix};
pub use hello::{HelloReader, NoHello};
pub use sniff::{Sniffed, sniff};
pub use workers::Workers;

use crate::http::inspection::Inspection;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::tls::Authority;
use connection::ConnectionCount;

/// What all connections share.
pub struct Engine {
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) connections: Arc<ConnectionCount>,
    /// How many there may be at most, whatever the configuration says.
    pub(crate) most_connections: usize,
    /// Those of addresses that nobody registered.
    pub(crate) unknown_sources: Arc<ConnectionCount>,
    /// Memory and threads for buffered bodies.
    pub(crate) inspection: Arc<Inspection>,
    /// Every connection, tunnel and WebSocket, so that a shutdown can wait for them.
    pub(crate) tasks: TaskTracker,
    /// Where they run.
    pub(crate) workers: Workers,
    /// No new requests.
    pub(crate) stopping: CancellationToken,
    /// No more timeouts.
    pub(crate) killed: CancellationToken,
}

impl Engine {
    /// An engine that serves the snapshot in force at the time, to so many connections at once.
    pub fn new(
        snapshots: Arc<SnapshotStore>,
        authority: Arc<Authority>,
        workers: Workers,
        most_connections: usize,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            snapshots,
            authority,
            metrics: ProxyMetrics::register(registry)?,
            connections: Arc::default(),
            most_connections,
            unknown_sources: Arc::default(),
            inspection: Arc::new(Inspection::new(registry)?),
            tasks: TaskTracker::new(),
            workers,
            stopping: CancellationToken::new(),
            killed: CancellationToken::new(),
        })
    }

    /// Takes up a CA that was rotated.
    pub fn refresh_authority(&self) -> Result<(), crate::tls::CaError> {
        self.authority.refresh()
    }

    /// The snapshot in force.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.current()
    }

    /// Lets flows finish within `limit`, then ends them.
    pub async fn stop(&self, limit: std::time::Duration) {
        self.stopping.cancel();
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait())
            .await
            .is_err()
        {
            self.killed.cancel();
            self.tasks.wait().await;
        }
    }
}

/// What the engine counts itself, since no addon sees it.
pub(crate) struct ProxyMetrics {
    pub(crate) active_connections: IntGauge,
    pub(crate) leaf_certificates: IntCounterVec,
    pub(crate) certificate_rejections: IntCounter,
}

impl ProxyMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let active_connections = IntGauge::new(
            "proxy_active_connections",
            "Connections of sandboxes that are open.",
        )?;
        let leaf_certificates = IntCounterVec::new(
            Opts::new(
                "proxy_leaf_certificates_total",
                "Certificates for intercepted tunnels, by outcome.",
            ),
            &["outcome"],
        )?;
        let certificate_rejections = IntCounter::new(
            "proxy_client_certificate_rejections_total",
            "TLS handshakes that clients ended over our certificate: they do not trust the CA.",
        )?;
        registry.register(Box::new(active_connections.clone()))?;
        registry.register(Box::new(certificate_rejections.clone()))?;
        registry.register(Box::new(leaf_certificates.clone()))?;
        for outcome in ["minted", "cached", "limited", "failed"] {
            leaf_certificates.with_label_values(&[outcome]);
        }
        Ok(Self {
            active_connections,
            leaf_certificates,
            certificate_rejections,
        })
    }
}
