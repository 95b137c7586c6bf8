//! The proxy listener: HTTP in absolute form and CONNECT, with TLS interception inside; the listener
//! of the MCP gateway; on those that containers have for their own, DNS over HTTPS as well.

mod accept;
mod connection;
mod hello;
mod io;
mod leaf;
mod origin_form;
mod rejected;
mod serve;
mod sniff;
mod tunnel;
mod workers;

use std::sync::Arc;

pub use accept::{Door, serve_delegated, serve_tcp, serve_unix};
pub use hello::{HelloReader, NoHello};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
pub use sniff::{Sniffed, sniff};
pub use workers::Workers;

use crate::dns;
use crate::http::Service;
use crate::mcp::Gateway;
use crate::tls::Authority;
use connection::ConnectionCount;

/// What all connections share.
pub struct Engine {
    pub(crate) service: Arc<Service>,
    /// Answers the DNS questions that come over HTTP.
    questions: Arc<dns::Service>,
    /// Answers MCP clients.
    gateway: Arc<Gateway>,
    authority: Arc<Authority>,
    metrics: ProxyMetrics,
    connections: Arc<ConnectionCount>,
    /// How many there may be at most, whatever the configuration says.
    most_connections: usize,
    /// Those of addresses that nobody registered.
    unknown_sources: Arc<ConnectionCount>,
    /// Where they run.
    workers: Workers,
}

impl Engine {
    /// An engine that serves so many connections at once.
    pub fn new(
        service: Arc<Service>,
        questions: Arc<dns::Service>,
        gateway: Arc<Gateway>,
        authority: Arc<Authority>,
        workers: Workers,
        most_connections: usize,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            service,
            questions,
            gateway,
            authority,
            metrics: ProxyMetrics::register(registry)?,
            connections: Arc::default(),
            most_connections,
            unknown_sources: Arc::default(),
            workers,
        })
    }

    /// Takes up a CA that was rotated.
    pub fn refresh_authority(&self) -> Result<(), crate::tls::CaError> {
        self.authority.refresh()
    }

    /// Lets flows finish within `limit`, then ends them.
    pub async fn stop(&self, limit: std::time::Duration) {
        let service = &self.service;
        service.stopping.cancel();
        service.tasks.close();
        if tokio::time::timeout(limit, service.tasks.wait())
            .await
            .is_err()
        {
            service.killed.cancel();
            service.tasks.wait().await;
        }
    }
}

/// What the engine counts itself, since no addon sees it.
struct ProxyMetrics {
    active_connections: IntGauge,
    leaf_certificates: IntCounterVec,
    certificate_rejections: IntCounter,
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
