//! Listeners for containers:
//!
//! - The proxy takes requests in absolute form and CONNECT. It intercepts TLS inside tunnels.
//! - The MCP gateway takes MCP over HTTP.
//! - The Unix listener of a container serves the proxy, the gateway and DNS over HTTPS.
//! - The Unix listener of an MCP server's process serves the proxy and DNS over HTTPS.

mod accept;
mod connection;
mod head_lines;
mod hello;
mod io;
mod leaf;
mod origin_form;
mod read_ahead;
mod rejected;
mod serve;
mod sniff;
mod tunnel;
mod workers;

use std::sync::Arc;

pub use accept::{ListenerKind, serve_delegated, serve_tcp, serve_unix};
pub use hello::{HelloReader, NoHello};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
pub use sniff::{Sniffed, sniff};
pub use workers::Workers;

use crate::dns;
use crate::http::Service;
use crate::mcp::Gateway;
use crate::tls::Authority;
use connection::ConnectionCount;

/// The state that all client connections share.
pub struct Engine {
    pub(crate) service: Arc<Service>,
    questions: Arc<dns::Service>,
    gateway: Arc<Gateway>,
    authority: Arc<Authority>,
    metrics: ProxyMetrics,
    connections: Arc<ConnectionCount>,
    /// The most client connections that the file descriptors allow, an upper bound for the
    /// configured limit.
    most_connections: usize,
    unknown_sources: Arc<ConnectionCount>,
    workers: Workers,
}

impl Engine {
    /// Makes an engine that serves at most `most_connections` client connections at once. Registers
    /// its metrics.
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

    /// Reads the CA's files again, so that a rotated CA takes over at the end of its grace period.
    pub fn refresh_authority(&self) -> Result<(), crate::tls::CaError> {
        self.authority.refresh()
    }

    /// Stops accepting connections, lets flows finish within `limit`, then aborts them. Returns
    /// when all tasks have ended.
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

/// Metrics of events that no addon sees.
struct ProxyMetrics {
    active_connections: IntGauge,
    leaf_certificates: IntCounterVec,
    certificate_rejections: IntCounter,
}

impl ProxyMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let active_connections =
            IntGauge::new("proxy_active_connections", "Open client connections.")?;
        let leaf_certificates = IntCounterVec::new(
            Opts::new(
                "proxy_leaf_certificates_total",
                "Certificates for intercepted tunnels, by outcome.",
            ),
            &["outcome"],
        )?;
        let certificate_rejections = IntCounter::new(
            "proxy_client_certificate_rejections_total",
            "TLS handshakes that clients ended because they do not trust the proxy's CA.",
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
