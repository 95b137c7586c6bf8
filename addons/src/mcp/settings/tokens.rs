//! Reads `tokens`: what callers without a container show.

use std::path::PathBuf;
use std::sync::Arc;

use crate::contract::settings::{Fields, Setting};

/// The tokens (JWT) with which people on this machine call the policy servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanJwt {
    /// The public keys of the issuer, as a JWK set (RFC 7517).
    pub jwks_file: PathBuf,
    /// The claim `iss` of every token.
    pub issuer: Arc<str>,
    /// A value that the claim `aud` of every token has.
    pub audience: Arc<str>,
}

impl HumanJwt {
    pub(super) fn read(tokens: &Fields<'_>) -> Option<Arc<Self>> {
        let fields = tokens.find("human_jwt")?.fields()?;
        let (file, issuer, audience) = (
            fields.need("jwks_file").and_then(filled),
            fields.need("issuer").and_then(filled),
            fields.need("audience").and_then(filled),
        );
        Some(Arc::new(Self {
            jwks_file: PathBuf::from(file?),
            issuer: issuer?.into(),
            audience: audience?.into(),
        }))
    }
}

fn filled(at: Setting<'_>) -> Option<&str> {
    let text = at.text()?;
    if text.is_empty() {
        at.refuse("must not be empty");
        return None;
    }
    Some(text)
}
