//! Verifies the tokens (JWT, RFC 7519) of people against the public keys in a file.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::FileVersion;
use addons::json::strict;
use addons::mcp::HumanJwt;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use time::OffsetDateTime;

use crate::runtime::is_harmful;
use crate::secret_files;

/// The longest token, in bytes; those of common issuers have 1 to 2 KiB.
const MAX_TOKEN: usize = 8 << 10;
/// The longest file of keys, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// The most keys of a file: an issuer has a few, during a rotation.
const MAX_KEYS: usize = 32;
/// The longest subject, in bytes.
const MAX_SUBJECT: usize = 256;
/// How soon a file that cannot be used is read again, if it has not changed.
const RETRY: Duration = Duration::from_secs(1);
/// How far the issuer's clock may be off, in seconds.
const SKEW: f64 = 60.0;

/// Why a token is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TokenError {
    #[error("the file of keys cannot be used; look at the server's log")]
    Keys,
    #[error("it is longer than {MAX_TOKEN} bytes, or malformed")]
    Malformed,
    #[error("no key of the file has signed it with the key's algorithm")]
    Signature,
    #[error("the claims iss, aud, exp and sub are required, each of the right type")]
    Claims,
    #[error("it is from another issuer")]
    Issuer,
    #[error("it is for another audience")]
    Audience,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    Early,
}

/// Whether a credential looks like a token of this kind: three parts in base64url.
pub fn is_token(credential: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte);
    let mut parts = credential.split('.');
    let [header, claims, signature] = [parts.next(), parts.next(), parts.next()];
    let parts_fit = [header, claims, signature].into_iter().all(|part| {
        // Without an algorithm, the signature is empty.
        part.is_some_and(|part| part.bytes().all(fits))
    });
    parts_fit && parts.next().is_none() && header.is_some_and(|header| header.starts_with("ey"))
}

/// The keys that were read last.
#[derive(Default)]
pub struct HumanTokens(Mutex<Option<Loaded>>);

struct Loaded {
    path: PathBuf,
    /// `None` if the file could not be found.
    version: Option<FileVersion>,
    /// `None` if the file cannot be used, which was logged.
    keys: Option<Arc<[Key]>>,
    at: Instant,
}

/// A public key with its only algorithm.
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
    iat: Option<f64>,
    sub: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl HumanTokens {
    /// The subject of a valid token. Blocks while the file of keys is read, which is read again
    /// after each change. Without a usable file, no token is valid.
    pub fn verify(
        &self,
        settings: &HumanJwt,
        token: &str,
        now: OffsetDateTime,
    ) -> Result<String, TokenError> {
        if token.len() > MAX_TOKEN || !is_token(token) {
            return Err(TokenError::Malformed);
        }
        let keys = self.keys(&settings.jwks_file).ok_or(TokenError::Keys)?;
        let claims = verified(&keys, token)?;
        check(&claims, settings, now)?;
        Ok(claims.sub)
    }

    /// The keys of the file; `None` if it cannot be used. An error is logged once for each change of the
    /// file: anybody on this machine may send tokens.
    fn keys(&self, path: &Path) -> Option<Arc<[Key]>> {
        let mut loaded = self.0.lock();
        // Taken before the file is read, so that the next read notices a change in between.
        let metadata = fs::metadata(path);
        let version = metadata.as_ref().ok().map(secret_files::version);
        let known = loaded.as_ref();
        let known = known.filter(|known| known.path == path && known.version == version);
        if let Some(known) = known
            && (known.keys.is_some() || known.at.elapsed() < RETRY)
        {
            return known.keys.clone();
        }
        let keys = metadata.and_then(|metadata| read_file(path, &metadata));
        if let (Err(error), None) = (&keys, known) {
            let file = path.display();
            tracing::error!(%file, %error, "mcp.yaml: tokens.human_jwt.jwks_file cannot be used: no token is accepted");
        }
        let keys: Option<Arc<[Key]>> = keys.ok().map(Into::into);
        *loaded = Some(Loaded {
            path: path.to_owned(),
            version,
            keys: keys.clone(),
            at: Instant::now(),
        });
        keys
    }
}

/// Reads the file of keys. Whoever can write it can be every person.
fn read_file(path: &Path, metadata: &Metadata) -> io::Result<Vec<Key>> {
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(io::Error::other("not a regular file of at most 64 KiB"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "users other than its owner may write it: chmod go-w",
        ));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    read_keys(&bytes).map_err(io::Error::other)
}

/// Reads a JWK set (RFC 7517). Leaves out keys that verify no signatures, and keys of other types.
fn read_keys(bytes: &[u8]) -> Result<Vec<Key>, String> {
    let set = strict::parse(bytes).map_err(|error| error.to_string())?;
    let listed = set.get("keys").and_then(Value::as_array);
    let listed = listed.ok_or("it is not a JWK set: {\"keys\": [...]}")?;
    if listed.len() > MAX_KEYS {
        return Err(format!("it has more than {MAX_KEYS} keys"));
    }
    let mut keys: Vec<Key> = Vec::new();
    for jwk in listed {
        if jwk.get("d").is_some() {
            return Err("it has a private key: write only public keys".to_owned());
        }
        let Some(key) = key(jwk) else { continue };
        if keys.iter().any(|other| other.id == key.id) {
            return Err("two keys have the same kid, or none".to_owned());
        }
        keys.push(key);
    }
    match keys.is_empty() {
        true => Err(
            "it has no public key of the types RSA, EC (P-256, P-384) or OKP (Ed25519)".to_owned(),
        ),
        false => Ok(keys),
    }
}

/// A key that verifies signatures with one algorithm; `None` for another key.
fn key(jwk: &Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(jwk.clone()).ok()?;
    let common = &jwk.common;
    let is_for_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
    let operations = common.key_operations.as_ref();
    let verifies = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
    if !is_for_signatures || !verifies {
        return None;
    }
    let (named, algorithm) = match (&jwk.algorithm, common.key_algorithm) {
        (AlgorithmParameters::EllipticCurve(key), named) => match key.curve {
            EllipticCurve::P256 => (named, (KeyAlgorithm::ES256, Algorithm::ES256)),
            EllipticCurve::P384 => (named, (KeyAlgorithm::ES384, Algorithm::ES384)),
            _ => return None,
        },
        (AlgorithmParameters::OctetKeyPair(key), named) => match key.curve {
            EllipticCurve::Ed25519 => (named, (KeyAlgorithm::EdDSA, Algorithm::EdDSA)),
            _ => return None,
        },
        // An RSA key without `alg` has the algorithm that every issuer implements.
        (AlgorithmParameters::RSA(_), named) => {
            let rsa = [
                (KeyAlgorithm::RS256, Algorithm::RS256),
                (KeyAlgorithm::RS384, Algorithm::RS384),
                (KeyAlgorithm::RS512, Algorithm::RS512),
                (KeyAlgorithm::PS256, Algorithm::PS256),
                (KeyAlgorithm::PS384, Algorithm::PS384),
                (KeyAlgorithm::PS512, Algorithm::PS512),
            ];
            let wanted = named.unwrap_or(KeyAlgorithm::RS256);
            (named, rsa.into_iter().find(|(named, _)| *named == wanted)?)
        }
        // A symmetric key in a file of public keys would let its readers make tokens.
        _ => return None,
    };
    if named.is_some_and(|named| named != algorithm.0) {
        return None;
    }
    Some(Key {
        id: common.key_id.clone(),
        algorithm: algorithm.1,
        key: DecodingKey::from_jwk(&jwk).ok()?,
    })
}

/// The claims of a token whose signature is valid. The key is the one that the token names; without
/// a name, the only one.
fn verified(keys: &[Key], token: &str) -> Result<Claims, TokenError> {
    let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    let key = match (&header.kid, keys) {
        (Some(id), keys) => keys.iter().find(|key| key.id.as_ref() == Some(id)),
        (None, [sole]) => Some(sole),
        (None, _) => None,
    };
    let key = key.ok_or(TokenError::Signature)?;
    // The algorithm is the key's: the library refuses a token that names another one.
    let mut validation = Validation::new(key.algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let data = decode::<Value>(token, &key.key, &validation);
    let claims = data.map_err(|_| TokenError::Signature)?.claims;
    serde_json::from_value(claims).map_err(|_| TokenError::Claims)
}

fn check(claims: &Claims, settings: &HumanJwt, now: OffsetDateTime) -> Result<(), TokenError> {
    if *claims.iss != *settings.issuer {
        return Err(TokenError::Issuer);
    }
    let is_for_us = match &claims.aud {
        Audience::One(audience) => **audience == *settings.audience,
        Audience::Several(all) => all.iter().any(|audience| **audience == *settings.audience),
    };
    if !is_for_us {
        return Err(TokenError::Audience);
    }
    let is_printable = !claims.sub.contains(is_harmful);
    if !(1..=MAX_SUBJECT).contains(&claims.sub.len()) || !is_printable {
        return Err(TokenError::Claims);
    }
    let now = now.unix_timestamp() as f64;
    if now >= claims.exp + SKEW {
        return Err(TokenError::Expired);
    }
    let mut begins = [claims.nbf, claims.iat].into_iter().flatten();
    match begins.all(|at| at <= now + SKEW) {
        true => Ok(()),
        false => Err(TokenError::Early),
    }
}

#[cfg(test)]
mod tests;
