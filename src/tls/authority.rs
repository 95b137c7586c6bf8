//! Leaf certificates for intercepted hosts: minted on demand, cached, short-lived.

use std::sync::Arc;

use addons::contract::Host;
use arc_swap::ArcSwap;
use moka::sync::Cache;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
    SerialNumber,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCertUsingSni};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use time::{Duration, OffsetDateTime};

use super::ca_error::CaError;
use super::ca_files::{Ca, CaFiles};

/// The most cached leaves; each takes a few KiB of memory.
const CACHE_CAPACITY: u64 = 4096;
/// How long a leaf is valid after its minting.
const LEAF_LIFETIME: Duration = Duration::hours(24);
/// How far `notBefore` is before the minting, for clients whose clock is behind.
const LEAF_SKEW: Duration = Duration::hours(1);
/// How long a leaf is cached. A leaf from the cache is valid for at least 12 more hours, unless the
/// CA expires earlier.
const CACHE_LIFETIME: std::time::Duration = std::time::Duration::from_secs(12 * 3600);
/// TLS 1.3 session tickets sent after a handshake. A ticket resumes one connection, and each
/// connection gets a new one.
const TICKETS: usize = 1;

/// Mints leaves for hosts that a container may reach.
///
/// All leaves share one key, so that minting costs one signature. This key is generated for this
/// process; it is never the CA's key.
pub struct Authority {
    files: CaFiles,
    ca: ArcSwap<Ca>,
    leaf_key: KeyPair,
    signing_key: Arc<dyn SigningKey>,
    /// The settings of all hosts, without a certificate.
    common: ServerConfig,
    provider: Arc<CryptoProvider>,
    cache: Cache<Host, Minted>,
}

/// A leaf ready to serve, and the time when it was minted.
#[derive(Clone)]
struct Minted {
    config: Arc<ServerConfig>,
    at: OffsetDateTime,
}

impl Minted {
    /// Whether the leaf may be served at `now`. The cache expires by elapsed time, so a change of
    /// the system clock can make a cached leaf too old or too young.
    fn serves(&self, now: OffsetDateTime) -> bool {
        self.at - LEAF_SKEW <= now && now < self.at + CACHE_LIFETIME
    }
}

impl Authority {
    /// Loads the CA of `files`, or generates it on the first start.
    pub fn open(files: CaFiles, provider: Arc<CryptoProvider>) -> Result<Self, CaError> {
        let ca = files.load_or_create(OffsetDateTime::now_utc())?;
        let leaf_key = KeyPair::generate()?;
        let der = PrivatePkcs8KeyDer::from(leaf_key.serialize_der());
        let signing_key = provider.key_provider.load_private_key(der.into())?;
        let common = common_config(&provider)?;
        Ok(Self {
            files,
            ca: ArcSwap::from_pointee(ca),
            leaf_key,
            signing_key,
            common,
            provider,
            cache: Cache::builder()
                .max_capacity(CACHE_CAPACITY)
                .time_to_live(CACHE_LIFETIME)
                .build(),
        })
    }

    /// Reads the CA's files again. If the grace period of a rotation has ended, the new CA takes
    /// over and the cache is emptied. On an error the loaded CA stays in use.
    pub fn refresh(&self) -> Result<(), CaError> {
        let ca = self.files.load_or_create(OffsetDateTime::now_utc())?;
        if ca.pem != self.ca.load().pem {
            self.ca.store(Arc::new(ca));
            self.cache.invalidate_all();
        }
        Ok(())
    }

    /// The cached server configuration for a host; `None` if there is none with a valid leaf.
    pub fn cached(&self, host: &Host) -> Option<Arc<ServerConfig>> {
        self.cached_at(host, OffsetDateTime::now_utc())
    }

    /// Mints and caches a leaf for a host, and returns the server configuration with it. If the
    /// cache has a configuration, returns that one. Concurrent calls for one host mint once.
    pub fn mint(&self, host: &Host) -> Result<Arc<ServerConfig>, Arc<CaError>> {
        self.mint_at(host, OffsetDateTime::now_utc())
    }

    fn cached_at(&self, host: &Host, now: OffsetDateTime) -> Option<Arc<ServerConfig>> {
        let minted = self.cache.get(host).filter(|minted| minted.serves(now));
        minted.map(|minted| minted.config)
    }

    fn mint_at(&self, host: &Host, now: OffsetDateTime) -> Result<Arc<ServerConfig>, Arc<CaError>> {
        if self.cache.get(host).is_some_and(|old| !old.serves(now)) {
            self.cache.invalidate(host);
        }
        let ca = self.ca.load_full();
        let mint = || {
            let config = self.server_config(host, now, &ca)?;
            Ok(Minted { config, at: now })
        };
        let minted = self.cache.try_get_with_by_ref(host, mint)?;
        // `refresh` may have replaced the CA, and emptied the cache before this leaf was inserted.
        if !Arc::ptr_eq(&ca, &self.ca.load()) {
            self.cache.invalidate(host);
        }
        Ok(minted.config)
    }

    fn server_config(
        &self,
        host: &Host,
        now: OffsetDateTime,
        ca: &Ca,
    ) -> Result<Arc<ServerConfig>, CaError> {
        let leaf = self.leaf(host, now, ca)?;
        let certified = CertifiedKey::new(vec![leaf], Arc::clone(&self.signing_key));
        let mut config = self.common.clone();
        config.cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        Ok(Arc::new(config))
    }

    fn leaf(
        &self,
        host: &Host,
        now: OffsetDateTime,
        ca: &Ca,
    ) -> Result<rustls::pki_types::CertificateDer<'static>, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.not_before = (now - LEAF_SKEW).max(ca.not_before);
        params.not_after = (now + LEAF_LIFETIME).min(ca.not_after);
        params.serial_number = Some(random_serial(&self.provider)?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let text = host.to_string();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_ref().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        // A common name holds at most 64 characters; clients match the subject alternative name.
        if text.len() <= 64 {
            params.distinguished_name.push(DnType::CommonName, text);
        }
        let leaf = params.signed_by(&self.leaf_key, &ca.issuer)?;
        Ok(leaf.der().clone())
    }
}

/// Makes the settings that all hosts share. Called once: rustls allocates a large session store for
/// each new configuration, although this function replaces the store.
fn common_config(provider: &Arc<CryptoProvider>) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // The provider's order of cipher suites decides, with AES-128 first: many clients prefer
    // AES-256, which costs more.
    config.ignore_client_order = true;
    // Session state is in the clients' tickets, so that the server keeps none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    config.send_tls13_tickets = TICKETS;
    Ok(config)
}

fn random_serial(provider: &CryptoProvider) -> Result<SerialNumber, rcgen::Error> {
    let mut bytes = [0_u8; 16];
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| rcgen::Error::RingUnspecified)?;
    // A positive integer whose DER encoding always has 16 bytes.
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    fn authority(dir: &std::path::Path) -> Authority {
        let files = CaFiles::new(&dir.join("data"), &dir.join("certs"));
        Authority::open(files, Arc::new(crate::tls::provider())).unwrap()
    }

    #[test]
    fn an_unusable_provider_is_reported_with_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = CaFiles::new(&dir.path().join("data"), &dir.path().join("certs"));
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.clear();
        let refused = Authority::open(files, Arc::new(provider)).err().unwrap();
        assert!(refused.to_string().contains("cipher suites"), "{refused}");
    }

    #[test]
    fn a_client_that_prefers_aes_256_gets_aes_128() {
        let dir = tempfile::tempdir().unwrap();
        let authority = authority(dir.path());
        let minted = authority.mint(&Host::parse("a.example.com").unwrap());
        let mut server = rustls::ServerConnection::new(minted.unwrap()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(authority.ca.load().pem.as_bytes());
        roots.add(ca.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let preferred = provider.cipher_suites[0].suite();
        assert_eq!(preferred, CipherSuite::TLS13_AES_256_GCM_SHA384);
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "a.example.com".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let (mut sent, mut answered) = (Vec::new(), Vec::new());
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut &*sent).unwrap();
            server.process_new_packets().unwrap();
            server.write_tls(&mut answered).unwrap();
            client.read_tls(&mut &*answered).unwrap();
            client.process_new_packets().unwrap();
        }
        let negotiated = server.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(negotiated, CipherSuite::TLS13_AES_128_GCM_SHA256);
    }

    #[test]
    fn leaves_are_short_lived_with_random_serials_and_another_key_than_the_ca() {
        let dir = tempfile::tempdir().unwrap();
        let authority = authority(dir.path());
        let now = OffsetDateTime::now_utc();
        let ca = authority.ca.load_full();
        let der = |name| {
            authority
                .leaf(&Host::parse(name).unwrap(), now, &ca)
                .unwrap()
        };
        let (one, two) = (der("a.example.com"), der("a.example.com"));
        let (_, first) = x509_parser::parse_x509_certificate(&one).unwrap();
        let (_, second) = x509_parser::parse_x509_certificate(&two).unwrap();
        assert_ne!(first.raw_serial(), second.raw_serial());
        let validity = first.validity();
        let lifetime = validity.not_after.timestamp() - validity.not_before.timestamp();
        assert!(lifetime <= 25 * 3600, "{lifetime}");
        let ca = authority.ca.load();
        let ca_key = ca.issuer.key().public_key_raw();
        assert_ne!(first.public_key().subject_public_key.data.as_ref(), ca_key);
        assert!(!first.is_ca());
    }

    #[test]
    fn a_second_mint_for_a_host_returns_the_cached_leaf() {
        let dir = tempfile::tempdir().unwrap();
        let authority = authority(dir.path());
        let host = Host::parse("a.example.com").unwrap();
        assert!(authority.cached(&host).is_none());
        let first = authority.mint(&host).unwrap();
        let second = authority.mint(&host).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(authority.cached(&host).is_some());
    }

    #[test]
    fn a_leaf_that_a_clock_change_made_too_old_or_too_young_is_minted_again() {
        let dir = tempfile::tempdir().unwrap();
        let authority = authority(dir.path());
        let host = Host::parse("a.example.com").unwrap();
        let now = OffsetDateTime::now_utc();
        let mut last = authority.mint_at(&host, now).unwrap();
        for jump in [Duration::days(2), Duration::hours(-2)] {
            let then = now + jump;
            assert!(authority.cached_at(&host, then).is_none(), "{jump}");
            let minted = authority.mint_at(&host, then).unwrap();
            assert!(!Arc::ptr_eq(&last, &minted), "{jump}");
            assert!(authority.cached_at(&host, then).is_some(), "{jump}");
            last = minted;
        }
    }
}
