//! TLS towards upstreams, whose certificates are always verified.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::signatures::caching;

/// The most TLS sessions that one lease caches for resumption.
const SESSIONS_PER_LEASE: usize = 64;

/// The TLS configuration for upstreams, whose certificates are verified against its roots.
#[derive(Clone)]
pub struct UpstreamTls {
    config: Arc<ClientConfig>,
}

impl UpstreamTls {
    /// Loads the system's roots, and the certificates of a PEM bundle as further roots. The error
    /// names the bundle if the bundle cannot be used.
    pub fn load(bundle: Option<&Path>, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = bundle {
            let unusable = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            let pem = std::fs::read(path).map_err(|error| unusable(&error))?;
            let mut added = 0;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| unusable(&error))?;
                roots.add(certificate).map_err(|error| unusable(&error))?;
                added += 1;
            }
            if added == 0 {
                return Err(unusable(&"the file contains no certificate"));
            }
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(caching(&provider)))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each lease gets a session cache of its own in `for_lease`.
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// Two configurations for one lease: the first offers HTTP/1.1 only, the second HTTP/2 as well.
    /// They share a session cache that no other lease uses.
    #[must_use]
    pub fn for_lease(&self) -> (Arc<ClientConfig>, Arc<ClientConfig>) {
        let mut http1 = ClientConfig::clone(&self.config);
        http1.resumption = Resumption::in_memory_sessions(SESSIONS_PER_LEASE);
        let mut http2 = http1.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        http2.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        (Arc::new(http1), Arc::new(http2))
    }
}
