//! The JWT with which an App requests installation tokens, signed with RS256.

use aws_lc_rs::error::KeyRejected;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// Seconds by which `iat` lies before now, in case the local clock is ahead of GitHub's.
const ISSUED_BEFORE: i64 = 60;
/// Seconds from now to `exp`. GitHub allows at most ten minutes.
const VALID_FOR: i64 = 540;

/// Signs a JWT of the App with its private key, PKCS #1 or PKCS #8 in PEM. An error never shows the
/// key.
pub(super) fn signed(
    app_id: &str,
    pem: &str,
    now: OffsetDateTime,
) -> Result<Zeroizing<String>, String> {
    const WRONG: &str = "the private key is not an RSA key in PEM";
    let key = key(pem).ok_or(WRONG)?;
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

/// Parses the first RSA private key in the text; `None` if there is none.
fn key(text: &str) -> Option<RsaKeyPair> {
    let sections = pem::parse_many(text).ok()?;
    sections.into_iter().find_map(|section| {
        let read: fn(&[u8]) -> Result<RsaKeyPair, KeyRejected> = match section.tag() {
            "RSA PRIVATE KEY" => RsaKeyPair::from_der,
            "PRIVATE KEY" => RsaKeyPair::from_pkcs8,
            _ => return None,
        };
        read(&Zeroizing::new(section.into_contents())).ok()
    })
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
