//! The App's own token, with which it asks for others: a JWT signed with RS256.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// Seconds before now, for a clock that is ahead of GitHub's.
const ISSUED_BEFORE: i64 = 60;
/// Seconds from now; with the above below the ten minutes that GitHub allows.
const VALID_FOR: i64 = 540;

/// Signs a token of the App with its private key, PKCS #1 or PKCS #8 in PEM. An error never shows
/// the key.
pub(super) fn signed(
    app_id: &str,
    pem: &str,
    now: OffsetDateTime,
) -> Result<Zeroizing<String>, String> {
    const WRONG: &str = "the private key is no RSA key in PEM";
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| WRONG)?;
    let key = match &der {
        PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
        _ => return Err(WRONG.to_owned()),
    };
    let key = key.map_err(|_| WRONG)?;
    let input = signing_input(app_id, now);
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        input.as_bytes(),
        &mut signature,
    )
    .map_err(|_| "the JWT could not be signed")?;
    let signature = Zeroizing::new(URL_SAFE_NO_PAD.encode(signature));
    Ok(Zeroizing::new(format!("{input}.{}", *signature)))
}

fn signing_input(app_id: &str, now: OffsetDateTime) -> String {
    let now = now.unix_timestamp();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(json!({ "alg": "RS256", "typ": "JWT" }));
    let claims = part(json!({
        "iat": now.saturating_sub(ISSUED_BEFORE),
        "exp": now.saturating_add(VALID_FOR),
        "iss": app_id,
    }));
    format!("{header}.{claims}")
}
