//! Caches the verification of signatures on the certificates of upstreams.
//!
//! The same signatures recur: many hosts have the same few intermediates, many share a certificate,
//! and each lease opens its own connections. The first tunnel to a host takes 4.23 million
//! instructions without the cache. If the cache has the P-256 signature on the host's certificate,
//! the tunnel takes 3.51 million, 17 % less (`scripts/bench --instructions`, with and without
//! [`caching`]).
//!
//! The cache accepts no signature that the algorithm refuses:
//!
//! - Verifying is a function of key, message (the certificate without its signature) and signature
//!   alone. It reads no clock, so a valid signature stays valid and entries need no lifetime.
//! - The key of an entry is the SHA-256 of these three, each after its length. Each algorithm,
//!   which is a kind of key with a kind of signature, has its own entries. A hit for other bytes
//!   would need a collision of SHA-256, which would break the certificates themselves too.
//! - Only valid signatures are cached. Invalid ones are verified again each time.
//! - Names, validity periods, usages and the chain up to a root are checked each time, outside of
//!   this cache. The signature of the handshake, by which a server proves that it holds the
//!   certificate's key, is verified each time too.
//!
//! If an upstream fills the cache with its own certificates, other certificates are verified again;
//! nothing else happens. The time of a handshake can show that another lease met the same
//! certificate, as the time of a look-up can show that another lease asked for the same name.

use std::collections::HashSet;
use std::sync::LazyLock;

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// Limit on the number of valid signatures cached for each algorithm, 32 bytes each. The next
/// signature empties the algorithm's cache.
const MAX_CACHED: usize = 512;

/// One verifier for each algorithm, for all connections. Leaked, since rustls takes only static
/// references.
static ALL: LazyLock<Vec<&'static dyn SignatureVerificationAlgorithm>> = LazyLock::new(|| {
    let algorithms = default_provider().signature_verification_algorithms.all;
    let caching = algorithms.iter().copied().map(CachingVerifier::new);
    caching.map(|one| &*Box::leak(Box::new(one)) as _).collect()
});

/// The provider with verification algorithms that cache the valid signatures of certificate chains.
pub(super) fn caching(provider: &CryptoProvider) -> CryptoProvider {
    let mut provider = provider.clone();
    debug_assert_eq!(
        provider.signature_verification_algorithms.all.len(),
        ALL.len()
    );
    provider.signature_verification_algorithms = WebPkiSupportedAlgorithms {
        all: &ALL,
        // Used only for the signatures of handshakes, which never repeat, so it does not cache.
        mapping: provider.signature_verification_algorithms.mapping,
    };
    provider
}

/// An algorithm, with the hashes of the inputs that it found valid.
#[derive(Debug)]
struct CachingVerifier {
    algorithm: &'static dyn SignatureVerificationAlgorithm,
    good: Mutex<HashSet<[u8; SHA256_OUTPUT_LEN]>>,
}

impl CachingVerifier {
    fn new(algorithm: &'static dyn SignatureVerificationAlgorithm) -> Self {
        Self {
            algorithm,
            good: Mutex::default(),
        }
    }
}

impl SignatureVerificationAlgorithm for CachingVerifier {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let hash = hash([public_key, message, signature]).ok_or(InvalidSignature)?;
        if self.good.lock().contains(&hash) {
            return Ok(());
        }
        self.algorithm
            .verify_signature(public_key, message, signature)?;
        let mut good = self.good.lock();
        if good.len() == MAX_CACHED {
            good.clear();
        }
        good.insert(hash);
        Ok(())
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }

    fn fips(&self) -> bool {
        self.algorithm.fips()
    }
}

/// Hashes the parts, each with its length, so that the same bytes split elsewhere have another
/// hash.
fn hash(parts: [&[u8]; 3]) -> Option<[u8; SHA256_OUTPUT_LEN]> {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&part.len().to_be_bytes());
        context.update(part);
    }
    context.finish().as_ref().try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls_pki_types::{CertificateDer, UnixTime, alg_id};

    use super::*;

    /// Accepts signatures that begin with `good`, and counts the calls.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl SignatureVerificationAlgorithm for Counting {
        fn verify_signature(
            &self,
            _key: &[u8],
            _message: &[u8],
            signature: &[u8],
        ) -> Result<(), InvalidSignature> {
            self.0.fetch_add(1, Ordering::Relaxed);
            signature
                .starts_with(b"good")
                .then_some(())
                .ok_or(InvalidSignature)
        }

        fn public_key_alg_id(&self) -> AlgorithmIdentifier {
            alg_id::ECDSA_P256
        }

        fn signature_alg_id(&self) -> AlgorithmIdentifier {
            alg_id::ECDSA_SHA256
        }
    }

    fn counting() -> (CachingVerifier, &'static Counting) {
        let counting: &Counting = Box::leak(Box::default());
        (CachingVerifier::new(counting), counting)
    }

    #[test]
    fn only_valid_signatures_are_cached() {
        let (verifier, counting) = counting();
        let asked = |key: &str, message: &str, signature: &str| {
            let before = counting.0.load(Ordering::Relaxed);
            let [key, message, signature] = [key, message, signature].map(str::as_bytes);
            let answer = verifier.verify_signature(key, message, signature);
            (answer.is_ok(), counting.0.load(Ordering::Relaxed) - before)
        };
        assert_eq!(asked("key", "message", "good"), (true, 1));
        assert_eq!(asked("key", "message", "good"), (true, 0));
        // Inputs with one other part, and the same bytes split elsewhere, are not in the cache.
        assert_eq!(asked("kez", "message", "good"), (true, 1));
        assert_eq!(asked("key", "massage", "good"), (true, 1));
        assert_eq!(asked("key", "message", "good too"), (true, 1));
        assert_eq!(asked("keym", "essage", "good"), (true, 1));
        assert_eq!(asked("key", "message", "bad"), (false, 1));
        assert_eq!(asked("key", "message", "bad"), (false, 1));
    }

    #[test]
    fn the_cache_is_bounded() {
        let (verifier, _) = counting();
        for number in 0..3 * MAX_CACHED {
            let message = number.to_be_bytes();
            assert!(verifier.verify_signature(b"key", &message, b"good").is_ok());
        }
        assert!(verifier.good.lock().len() <= MAX_CACHED);
    }

    #[test]
    fn the_algorithms_are_those_of_the_provider_and_handshakes_are_not_cached() {
        let provider = default_provider();
        let before = provider.signature_verification_algorithms;
        let after = caching(&provider).signature_verification_algorithms;
        let ids = |all: &[&dyn SignatureVerificationAlgorithm]| {
            let ids = all
                .iter()
                .map(|one| (one.public_key_alg_id(), one.signature_alg_id()));
            ids.collect::<Vec<_>>()
        };
        assert_eq!(ids(after.all), ids(before.all));
        assert!(std::ptr::eq(after.mapping, before.mapping));
    }

    /// A verifier that trusts a new CA, and a leaf of that CA for `a.example.com`.
    fn trusting() -> (Arc<WebPkiServerVerifier>, CertificateDer<'static>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let params = CertificateParams::new(["a.example.com".to_owned()]).unwrap();
        let leaf = params.signed_by(&KeyPair::generate().unwrap(), &ca);
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(caching(&default_provider()));
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        (verifier.build().unwrap(), leaf.unwrap().der().clone())
    }

    #[test]
    fn a_cached_certificate_is_checked_again_for_name_date_and_root() {
        let (verifier, leaf) = trusting();
        let (others, _) = trusting();
        let now = UnixTime::now();
        let past = UnixTime::since_unix_epoch(Duration::ZERO);
        let takes = |verifier: &WebPkiServerVerifier, leaf: &_, name: &'static str, at| {
            let name = name.try_into().unwrap();
            let verified = verifier.verify_server_cert(leaf, &[], &name, &[], at);
            verified.is_ok()
        };
        for _ in 0..2 {
            assert!(takes(&verifier, &leaf, "a.example.com", now));
            assert!(!takes(&verifier, &leaf, "b.example.com", now));
            assert!(!takes(&verifier, &leaf, "a.example.com", past));
            assert!(!takes(&others, &leaf, "a.example.com", now));
            let mut forged = leaf.to_vec();
            *forged.last_mut().unwrap() ^= 1;
            assert!(!takes(&verifier, &forged.into(), "a.example.com", now));
        }
    }
}
