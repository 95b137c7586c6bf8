//! The cryptography of TLS.

use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// The provider for both sides. In TLS 1.3 it prefers AES-128 with SHA-256 to AES-256 with SHA-384,
/// since most CPUs have instructions for SHA-256 but none for SHA-384: see ADR 018.
#[must_use]
pub fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    // The sort is stable: the other suites keep their order.
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}
