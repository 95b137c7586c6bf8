//! The certificates that containers trust, in the formats that their tools read.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// The password of `truststore.jks`. It keys the digest at the end of the file. It is not secret,
/// since the file holds only public certificates. Java's own trust store (`cacerts`) has it too, so
/// tools and people expect it.
pub const TRUST_STORE_PASSWORD: &str = "changeit";

/// The magic number of a JKS file.
const JKS_MAGIC: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
/// The version of the format since Java 1.2.
const JKS_VERSION: u32 = 2;
/// The tag of an entry for a trusted certificate.
const JKS_TRUSTED: u32 = 2;
/// The constant in the digest at the end of a JKS file: SHA-1 over the password in UTF-16, this
/// constant and the content.
const JKS_SALT: &[u8] = b"Mighty Aphrodite";

/// The system's roots and the certificate of the proxy's CA; during a rotation, also the
/// certificate of the next CA.
pub(super) struct TrustStore {
    system: Vec<CertificateDer<'static>>,
    ours: Vec<CertificateDer<'static>>,
}

impl TrustStore {
    /// Loads the certificates in `ours` (PEM) and the system's roots, except roots that cannot be
    /// read. Skips a root that is also in `ours`, so that no certificate occurs twice, and one that
    /// is in `retired` (PEM), which nothing may trust any more. The system's roots have both if
    /// `SSL_CERT_FILE` names the proxy's own bundle, or if the CA was installed on this machine.
    pub(super) fn load(ours: &str, retired: &str) -> Self {
        Self::with(
            rustls_native_certs::load_native_certs().certs,
            ours,
            retired,
        )
    }

    fn with(mut system: Vec<CertificateDer<'static>>, ours: &str, retired: &str) -> Self {
        let (ours, retired) = (read_pem(ours), read_pem(retired));
        system.retain(|root| !ours.contains(root) && !retired.contains(root));
        Self { system, ours }
    }

    /// The system's roots as PEM.
    pub(super) fn system_pem(&self) -> String {
        write_pem(&self.system)
    }

    /// Writes all certificates as a Java key store of type JKS, which every JVM reads: a header, an
    /// entry for each certificate, and a digest. Each entry has the date 0, so that the same
    /// certificates always make the same file. PKCS#12 would need another crate, and its random
    /// salt would change the file at each write.
    pub(super) fn jks(&self) -> Vec<u8> {
        let ours = self.ours.iter().map(|der| ("unified-proxy", der));
        let system = self.system.iter().map(|der| ("system", der));
        let mut file = JKS_MAGIC.to_vec();
        file.extend(JKS_VERSION.to_be_bytes());
        file.extend(length(self.ours.len() + self.system.len()));
        for (number, (prefix, der)) in ours.chain(system).enumerate() {
            file.extend(JKS_TRUSTED.to_be_bytes());
            text(&mut file, &format!("{prefix}-{number}"));
            // The date of the entry, in milliseconds since the epoch.
            file.extend(0_u64.to_be_bytes());
            text(&mut file, "X.509");
            file.extend(length(der.len()));
            file.extend_from_slice(der);
        }
        let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for unit in TRUST_STORE_PASSWORD.encode_utf16() {
            digest.update(&unit.to_be_bytes());
        }
        digest.update(JKS_SALT);
        digest.update(&file);
        file.extend_from_slice(digest.finish().as_ref());
        file
    }
}

/// Reads certificates from PEM, except those that cannot be read.
pub(super) fn read_pem(pem: &str) -> Vec<CertificateDer<'static>> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes());
    read.filter_map(Result::ok).collect()
}

/// Writes certificates as PEM (RFC 7468).
pub(super) fn write_pem(certificates: &[CertificateDer<'_>]) -> String {
    let mut pem = String::new();
    for certificate in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        for (at, letter) in STANDARD.encode(certificate).char_indices() {
            if at > 0 && at % 64 == 0 {
                pem.push('\n');
            }
            pem.push(letter);
        }
        pem.push_str("\n-----END CERTIFICATE-----\n");
    }
    pem
}

/// Encodes a count or a length in 4 bytes. Certificates are far below 4 GiB; a larger length would
/// make a file that Java refuses.
fn length(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes()
}

/// A short ASCII text as `java.io.DataOutput.writeUTF` writes it.
fn text(file: &mut Vec<u8>, text: &str) {
    file.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    file.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trust_store_is_written_byte_for_byte_as_the_format_defines_it() {
        let trusted = TrustStore {
            system: vec![CertificateDer::from(vec![7, 8])],
            ours: vec![CertificateDer::from(vec![9])],
        };
        let jks = trusted.jks();
        let mut expected = b"\xfe\xed\xfe\xed\0\0\0\x02\0\0\0\x02".to_vec();
        expected
            .extend(b"\0\0\0\x02\0\x0funified-proxy-0\0\0\0\0\0\0\0\0\0\x05X.509\0\0\0\x01\x09");
        expected.extend(b"\0\0\0\x02\0\x08system-1\0\0\0\0\0\0\0\0\0\x05X.509\0\0\0\x02\x07\x08");
        let (content, digest) = jks.split_at(jks.len() - 20);
        assert_eq!(content, expected);
        let keyed = [b"\0c\0h\0a\0n\0g\0e\0i\0tMighty Aphrodite", content].concat();
        let sha1 = aws_lc_rs::digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &keyed);
        assert_eq!(digest, sha1.as_ref());
    }

    #[test]
    fn a_retired_ca_among_the_roots_of_the_system_is_left_out() {
        let [retired, ours, other] = [1, 2, 3].map(|byte| CertificateDer::from(vec![byte; 48]));
        let pem = |root: &CertificateDer<'_>| write_pem(std::slice::from_ref(root));
        let system = vec![retired.clone(), ours.clone(), other.clone()];
        let trusted = TrustStore::with(system, &pem(&ours), &pem(&retired));
        assert_eq!((trusted.system, trusted.ours), (vec![other], vec![ours]));
    }

    #[test]
    fn written_pem_is_read_back() {
        let roots = [vec![1; 48], vec![2; 100]].map(CertificateDer::from);
        assert_eq!(read_pem(&write_pem(&roots)), roots);
    }
}
