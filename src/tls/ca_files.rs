//! The interception CA on disk: generated once, never replaced silently.

use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::{Duration, OffsetDateTime};

use super::ca_disk::{create_dir, read, write, write_if_changed};
use super::ca_error::{CaError, rfc3339};
use super::trusted::{TrustStore, read_pem, write_pem};

/// How long a CA is valid.
const CA_LIFETIME: Duration = Duration::days(365);
/// How far in the past `notBefore` is for a CA that signs at once, so that containers whose clocks
/// are behind accept the CA.
const CLOCK_SKEW: Duration = Duration::minutes(5);
/// How long a new CA is published before it signs, so that containers can start to trust it.
pub const ROTATION_GRACE: Duration = Duration::hours(24);

/// The base name of the files of the CA that signs.
const CURRENT: &str = "ca";
/// The base name of the files of the CA that signs next, during a rotation.
const NEXT: &str = "ca-next";

/// The base name of the file with the certificates of earlier CAs.
const RETIRED: &str = "ca-retired";

/// A CA with its private key.
pub(super) struct Ca {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
    subject: String,
    /// SHA-256 of the certificate, as browsers and `openssl x509 -fingerprint` show it.
    fingerprint: String,
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
}

/// The folders with the files of the CA.
#[derive(Clone, Debug)]
pub struct CaFiles {
    data_dir: PathBuf,
    certs_dir: PathBuf,
}

impl CaFiles {
    /// Uses `data_dir` for keys and their certificates, `certs_dir` for the files that containers
    /// read.
    #[must_use]
    pub fn new(data_dir: &Path, certs_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            certs_dir: certs_dir.to_owned(),
        }
    }

    /// The path of `ca.pem`, which has the certificates of the signing CA and of the next one.
    pub fn public_path(&self) -> PathBuf {
        self.certs_dir.join("ca.pem")
    }

    /// Loads the CA that signs now. Generates it on the first start, replaces it by the next CA at
    /// the end of the grace period, and writes the public files. Fails if the CA is not yet valid
    /// or has expired.
    pub(super) fn load_or_create(&self, now: OffsetDateTime) -> Result<Ca, CaError> {
        self.finish_promotion()?;
        let mut next = self.load(NEXT)?;
        let mut current = self.load(CURRENT)?;
        if next.as_ref().is_some_and(|next| next.not_before <= now) {
            self.promote()?;
            current = next.take();
        }
        let current = match current {
            Some(current) => current,
            None => self.create(CURRENT, now - CLOCK_SKEW)?,
        };
        if now < current.not_before {
            let not_before = current.not_before;
            return Err(CaError::NotYetValid { now, not_before });
        }
        if now >= current.not_after {
            let not_after = current.not_after;
            return Err(CaError::Expired { not_after });
        }
        self.publish(&current, next.as_ref())?;
        Ok(current)
    }

    /// Generates the next CA and publishes it beside the current one. The next CA signs after
    /// [`ROTATION_GRACE`], or at once if the current one is missing or has expired. Returns the
    /// time from which it signs.
    pub fn rotate(&self, now: OffsetDateTime) -> Result<OffsetDateTime, CaError> {
        if let Some(next) = self.load(NEXT)? {
            let from = next.not_before;
            return Err(CaError::RotationPending { from });
        }
        let current = self.load(CURRENT)?;
        let Some(current) = current.filter(|current| now < current.not_after) else {
            self.create(NEXT, now - CLOCK_SKEW)?;
            self.load_or_create(now)?;
            return Ok(now);
        };
        let next = self.create(NEXT, now + ROTATION_GRACE)?;
        self.publish(&current, Some(&next))?;
        Ok(next.not_before)
    }

    /// Describes the current and the next CA for a person, with their certificates as PEM. PEM
    /// parsers skip the lines in between, so that the text can be saved as a PEM file.
    pub fn describe(&self) -> Result<String, CaError> {
        let mut text = String::new();
        for (name, what) in [(CURRENT, "signs now"), (NEXT, "signs next")] {
            if let Some(ca) = self.load(name)? {
                let [from, to] = [ca.not_before, ca.not_after].map(rfc3339);
                text.push_str(&format!(
                    "# {what}\n# subject: {}\n# valid: {from} to {to}\n# SHA-256: {}\n{}",
                    ca.subject, ca.fingerprint, ca.pem
                ));
            }
        }
        if text.is_empty() {
            text.push_str("# there is no CA yet; the first start makes one\n");
        }
        Ok(text)
    }

    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.data_dir.join(format!("{name}.{extension}"))
    }

    fn load(&self, name: &str) -> Result<Option<Ca>, CaError> {
        let effect = match name {
            NEXT => "to cancel the rotation",
            _ => "to have a new CA made (sandboxes must then trust the new one)",
        };
        Self::load_pair(self.path(name, "key"), self.path(name, "crt"), effect)
    }

    /// Reads a CA; `effect` says what moving a bad file away would do.
    fn load_pair(
        key_path: PathBuf,
        cert_path: PathBuf,
        effect: &'static str,
    ) -> Result<Option<Ca>, CaError> {
        let half = |missing, present| CaError::Half {
            missing,
            present,
            effect,
        };
        let (key, pem) = match (read(&key_path)?, read(&cert_path)?) {
            (Some(key), Some(cert)) => (zeroize::Zeroizing::new(key), cert),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(half(cert_path, key_path)),
            (None, Some(_)) => return Err(half(key_path, cert_path)),
        };
        let broken = |path: &Path, why: String| CaError::Broken {
            path: path.to_owned(),
            why,
            effect,
        };
        let key = KeyPair::from_pem(&key).map_err(|error| broken(&key_path, error.to_string()))?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| broken(&cert_path, error.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der)
            .map_err(|error| broken(&cert_path, error.to_string()))?;
        let certified = &parsed.public_key().subject_public_key.data;
        if certified.as_ref() != key.public_key_raw() {
            return Err(broken(
                &cert_path,
                format!("the certificate does not belong to {}", key_path.display()),
            ));
        }
        let issuer = Issuer::from_ca_cert_der(&der, key)
            .map_err(|error| broken(&cert_path, error.to_string()))?;
        Ok(Some(Ca {
            issuer,
            subject: parsed.subject().to_string(),
            fingerprint: fingerprint(&der),
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
            pem,
        }))
    }

    /// Generates a CA. The key is written first, so that a crash leaves a key without a
    /// certificate, never a certificate without a key. The next start reports the lone key.
    fn create(&self, name: &str, not_before: OffsetDateTime) -> Result<Ca, CaError> {
        let key = KeyPair::generate()?;
        let not_before = not_before.replace_nanosecond(0).unwrap_or(not_before);
        let not_after = not_before + CA_LIFETIME;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = not_before;
        params.not_after = not_after;
        // The date distinguishes two CAs in a list.
        let common_name = format!("unified-proxy CA {}", not_before.date());
        let subject = format!("CN={common_name}");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let certificate = params.self_signed(&key)?;
        let pem = certificate.pem();
        create_dir(&self.data_dir, 0o700)?;
        let key_pem = zeroize::Zeroizing::new(key.serialize_pem());
        write(&self.path(name, "key"), key_pem.as_bytes(), 0o600)?;
        write(&self.path(name, "crt"), pem.as_bytes(), 0o644)?;
        let issuer = Issuer::new(params, key);
        Ok(Ca {
            issuer,
            subject,
            fingerprint: fingerprint(certificate.der()),
            pem,
            not_before,
            not_after,
        })
    }

    /// Adds the CAs that were published and are not in `public` any more to the list of those that
    /// the bundles leave out.
    fn retire(&self, public: &str) -> Result<String, CaError> {
        let published = read(&self.public_path())?.unwrap_or_default();
        let (public, retired) = (read_pem(public), self.retired()?);
        let mut gone = read_pem(&published);
        gone.retain(|ca| !public.contains(ca) && !read_pem(&retired).contains(ca));
        if gone.is_empty() {
            return Ok(retired);
        }
        let retired = retired + &write_pem(&gone);
        write(&self.path(RETIRED, "crt"), retired.as_bytes(), 0o644)?;
        Ok(retired)
    }

    /// The certificates of earlier CAs.
    fn retired(&self) -> Result<String, CaError> {
        Ok(read(&self.path(RETIRED, "crt"))?.unwrap_or_default())
    }

    /// Makes the next CA the current one by renaming its files. The certificate is renamed last:
    /// see [`Self::finish_promotion`].
    fn promote(&self) -> Result<(), CaError> {
        self.rename_next("key")?;
        self.rename_next("crt")
    }

    /// Renames the certificate of the next CA if only its key was renamed, because of a crash.
    fn finish_promotion(&self) -> Result<(), CaError> {
        let (key, cert) = (self.path(CURRENT, "key"), self.path(NEXT, "crt"));
        let is_pair = || matches!(Self::load_pair(key, cert, ""), Ok(Some(_)));
        if !self.path(NEXT, "key").exists() && is_pair() {
            self.rename_next("crt")?;
        }
        Ok(())
    }

    fn rename_next(&self, extension: &str) -> Result<(), CaError> {
        let (from, to) = (self.path(NEXT, extension), self.path(CURRENT, extension));
        fs::rename(&from, to).map_err(CaError::io(&from))
    }

    fn publish(&self, current: &Ca, next: Option<&Ca>) -> Result<(), CaError> {
        create_dir(&self.certs_dir, 0o755)?;
        let mut public = current.pem.clone();
        if let Some(next) = next {
            public.push_str(&next.pem);
        }
        let retired = self.retire(&public)?;
        write_if_changed(&self.public_path(), public.as_bytes())?;
        let trusted = TrustStore::load(&public, &retired);
        let bundle = trusted.system_pem() + &public;
        write_if_changed(&self.certs_dir.join("ca-bundle.pem"), bundle.as_bytes())?;
        write_if_changed(&self.certs_dir.join("truststore.jks"), &trusted.jks())
    }
}

fn fingerprint(der: &[u8]) -> String {
    let bytes = digest(&SHA256, der);
    let bytes = bytes.as_ref().iter().map(|byte| format!("{byte:02X}"));
    bytes.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use testkit::each_row;

    use super::*;

    fn files() -> (tempfile::TempDir, CaFiles) {
        let dir = tempfile::tempdir().unwrap();
        let files = CaFiles::new(&dir.path().join("data"), &dir.path().join("certs"));
        (dir, files)
    }

    #[test]
    fn the_first_start_generates_a_ca_whose_key_only_this_user_can_read() {
        let (dir, files) = files();
        let now = OffsetDateTime::now_utc();
        let made = files.load_or_create(now).unwrap();
        let mode = |name: &str| {
            fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode("data/ca.key"), 0o600);
        assert!(!dir.path().join("certs/ca.key").exists());
        let public = fs::read_to_string(files.public_path()).unwrap();
        assert!(!public.contains("PRIVATE"));
        assert_eq!(files.load_or_create(now).unwrap().pem, made.pem);
        let bundle = fs::read_to_string(dir.path().join("certs/ca-bundle.pem")).unwrap();
        assert!(bundle.ends_with(&public));
        let store = fs::read(dir.path().join("certs/truststore.jks")).unwrap();
        let ca = CertificateDer::from_pem_slice(public.as_bytes()).unwrap();
        assert!(store.windows(ca.len()).any(|part| part == ca.as_ref()));
        let roots = bundle.matches("BEGIN CERTIFICATE").count();
        assert_eq!(store[8..12], u32::try_from(roots).unwrap().to_be_bytes());
    }

    #[test]
    fn a_missing_key_or_certificate_is_reported_and_no_ca_is_generated() {
        each_row(
            [("ca.key", "ca.crt"), ("ca.crt", "ca.key")],
            |(gone, left)| {
                let (dir, files) = files();
                files.load_or_create(OffsetDateTime::now_utc()).unwrap();
                fs::remove_file(dir.path().join("data").join(gone)).unwrap();
                let error = files
                    .load_or_create(OffsetDateTime::now_utc())
                    .err()
                    .unwrap()
                    .to_string();
                assert!(error.contains(gone) && error.contains(left), "{error}");
                assert!(!dir.path().join("data").join(gone).exists());
            },
        );
    }

    #[test]
    fn files_of_the_next_ca_can_be_moved_away_to_cancel_the_rotation() {
        let (dir, files) = files();
        let now = OffsetDateTime::now_utc();
        let old = files.load_or_create(now).unwrap();
        files.rotate(now).unwrap();
        fs::remove_file(dir.path().join("data/ca-next.crt")).unwrap();
        let error = files.load_or_create(now).err().unwrap().to_string();
        let advice = "data/ca-next.key away to cancel the rotation";
        assert!(error.ends_with(advice), "{error}");
        fs::remove_file(dir.path().join("data/ca-next.key")).unwrap();
        assert_eq!(files.load_or_create(now).unwrap().pem, old.pem);
    }

    #[test]
    fn a_clock_outside_the_validity_is_reported() {
        let (_dir, files) = files();
        let now = OffsetDateTime::now_utc();
        files.load_or_create(now).unwrap();
        let early = files.load_or_create(now - Duration::days(2)).err().unwrap();
        assert!(matches!(early, CaError::NotYetValid { .. }), "{early}");
        let late = files
            .load_or_create(now + Duration::days(400))
            .err()
            .unwrap();
        assert!(matches!(late, CaError::Expired { .. }), "{late}");
    }

    #[test]
    fn a_rotated_ca_is_published_at_once_and_signs_after_the_grace_period() {
        let (_dir, files) = files();
        let now = OffsetDateTime::now_utc();
        let old = files.load_or_create(now).unwrap();
        let from = files.rotate(now).unwrap();
        assert!(from - now >= Duration::hours(23));
        let public = fs::read_to_string(files.public_path()).unwrap();
        assert_eq!(public.matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(files.load_or_create(now).unwrap().pem, old.pem);
        assert!(matches!(
            files.rotate(now),
            Err(CaError::RotationPending { .. })
        ));
        let new = files.load_or_create(now + ROTATION_GRACE).unwrap();
        assert_ne!(new.pem, old.pem);
        assert_eq!(fs::read_to_string(files.public_path()).unwrap(), new.pem);
        let retired = || read_pem(&files.retired().unwrap());
        assert_eq!(retired(), read_pem(&old.pem));
        files.rotate(now + ROTATION_GRACE).unwrap();
        files.load_or_create(now + ROTATION_GRACE * 2).unwrap();
        assert_eq!(retired(), read_pem(&(old.pem + &new.pem)));
    }

    #[test]
    fn a_ca_whose_files_were_removed_since_its_key_leaked_is_retired() {
        let (dir, files) = files();
        let now = OffsetDateTime::now_utc();
        let leaked = files.load_or_create(now).unwrap();
        for name in ["ca.key", "ca.crt"] {
            fs::remove_file(dir.path().join("data").join(name)).unwrap();
        }
        files.load_or_create(now).unwrap();
        assert_eq!(read_pem(&files.retired().unwrap()), read_pem(&leaked.pem));
    }

    #[test]
    fn a_start_completes_the_promotion_of_the_next_ca_after_a_crash() {
        let (dir, files) = files();
        let now = OffsetDateTime::now_utc();
        files.load_or_create(now).unwrap();
        let from = files.rotate(now).unwrap();
        let data = dir.path().join("data");
        let next = fs::read_to_string(data.join("ca-next.crt")).unwrap();
        fs::rename(data.join("ca-next.key"), data.join("ca.key")).unwrap();
        assert_eq!(files.load_or_create(from).unwrap().pem, next);
        assert!(!data.join("ca-next.crt").exists());
    }

    #[test]
    fn a_rotation_replaces_an_expired_ca_at_once() {
        let (_dir, files) = files();
        let now = OffsetDateTime::now_utc();
        files.load_or_create(now).unwrap();
        let late = now + Duration::days(400);
        files.rotate(late).unwrap();
        assert!(files.load_or_create(late).is_ok());
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let (dir, files) = files();
        files.load_or_create(OffsetDateTime::now_utc()).unwrap();
        let other = KeyPair::generate().unwrap();
        fs::write(dir.path().join("data/ca.key"), other.serialize_pem()).unwrap();
        let error = files
            .load_or_create(OffsetDateTime::now_utc())
            .err()
            .unwrap();
        assert!(matches!(error, CaError::Broken { .. }), "{error}");
    }
}
