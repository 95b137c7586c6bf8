//! The test origin's CA and its certificates: a valid one, and three with one fault each.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Chooses a certificate by the server name (SNI) in the ClientHello; without SNI, the handshake
/// fails.
#[derive(Debug)]
pub struct Certificates {
    pub ca_pem: String,
    good: Arc<CertifiedKey>,
    wrong_name: Arc<CertifiedKey>,
    expired: Arc<CertifiedKey>,
    self_signed: Arc<CertifiedKey>,
}

impl Certificates {
    pub fn new() -> Self {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The CA needs a distinct subject: OpenSSL considers a leaf self-signed if its subject
        // equals its issuer's.
        ca.distinguished_name
            .push(DnType::CommonName, "The origin's CA");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let signed = |names: &[&str], change: fn(&mut CertificateParams)| {
            let key = KeyPair::generate().unwrap();
            let mut params = params(names);
            change(&mut params);
            certified(&params.signed_by(&key, &ca).unwrap(), &key)
        };
        let names = [
            "*.example.com",
            "*.example.org",
            "github.com",
            "api.github.com",
            "api.anthropic.com",
            "platform.claude.com",
            "*.openai.com",
            "chatgpt.com",
            "*.chatgpt.com",
            "*.googleapis.com",
        ];
        let key = KeyPair::generate().unwrap();
        Self {
            ca_pem: ca.pem(),
            good: signed(&names, |_| ()),
            wrong_name: signed(&["elsewhere.example.net"], |_| ()),
            expired: signed(&names, |params| {
                params.not_before = rcgen::date_time_ymd(2020, 1, 1);
                params.not_after = rcgen::date_time_ymd(2020, 2, 1);
            }),
            self_signed: certified(&params(&names).self_signed(&key).unwrap(), &key),
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(match hello.server_name()? {
            "wrong-name.example.com" => &self.wrong_name,
            "expired.example.com" => &self.expired,
            "self-signed.example.com" => &self.self_signed,
            _ => &self.good,
        }))
    }
}

fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
}

fn certified(certificate: &rcgen::Certificate, key: &KeyPair) -> Arc<CertifiedKey> {
    let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let key = aws_lc_rs::sign::any_supported_type(&der).unwrap();
    Arc::new(CertifiedKey::new(vec![certificate.der().clone()], key))
}
