//! The CA and the certificate that all parts of a measurement share, and TLS configurations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Names in the certificate of the origin and the peers.
const NAMES: [&str; 2] = ["*.example.com", "*.many.example.com"];

/// A directory with `ca.pem`, `ca-key.pem`, `leaf.pem` and `leaf-key.pem`.
pub struct Certificates(pub PathBuf);

impl Certificates {
    /// Creates and writes the files. All keys are P-256.
    pub fn make(&self) -> anyhow::Result<()> {
        let ca_key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "performance CA");
        let ca = params.self_signed(&ca_key)?;
        self.write("ca.pem", &ca.pem())?;
        self.write("ca-key.pem", &ca_key.serialize_pem())?;
        let issuer = Issuer::new(params, ca_key);
        let key = KeyPair::generate()?;
        let names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        let leaf = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        self.write("leaf.pem", &leaf.pem())?;
        self.write("leaf-key.pem", &key.serialize_pem())
    }

    fn write(&self, name: &str, pem: &str) -> anyhow::Result<()> {
        let path = self.0.join(name);
        std::fs::write(&path, pem).with_context(|| path.display().to_string())
    }

    /// The CA and its key, for a peer that issues certificates.
    #[cfg(feature = "hudsucker")]
    pub fn issuer(&self) -> anyhow::Result<Issuer<'static, KeyPair>> {
        let read = |name| std::fs::read_to_string(self.0.join(name));
        let key = KeyPair::from_pem(&read("ca-key.pem")?)?;
        Ok(Issuer::from_ca_cert_pem(&read("ca.pem")?, key)?)
    }

    /// TLS configuration of a server with the shared certificate.
    pub fn server(&self, alpn: &[&[u8]]) -> anyhow::Result<Arc<ServerConfig>> {
        let leaf = CertificateDer::from_pem_file(self.0.join("leaf.pem"))?;
        let key = PrivateKeyDer::from_pem_file(self.0.join("leaf-key.pem"))?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![leaf], key)?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// TLS configuration of a client that trusts the CA.
    pub fn client(&self, alpn: &[&[u8]]) -> anyhow::Result<ClientConfig> {
        client(&self.0.join("ca.pem"), alpn)
    }
}

/// TLS configuration of a client that trusts only the CA in a PEM file.
pub fn client(ca: &Path, alpn: &[&[u8]]) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// TLS configuration of a client that resumes no session, like a new process each time.
pub fn without_resumption(ca: &Path, alpn: &[u8]) -> anyhow::Result<Arc<ClientConfig>> {
    let mut config = client(ca, &[alpn])?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
