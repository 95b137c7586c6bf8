//! Secrets prepared to be sent: read, checked, and put into header values.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::forms::Forms;
use super::oauth::Login;
use super::scrub::Scrubber;
use super::wiped::Wiped;
use super::{Credential, CredentialKind};
use crate::contract::SecretSource;

/// The most bytes that a secret may have; a longer one is unusable. No known key or token is as
/// long. Percent-encoded, a secret has at most 48 KiB, so it fits into the 64 KiB that a body
/// filter may hold back.
const MAX_SECRET: usize = 16 * 1024;

/// The secrets of one host's credentials, as read by [`Prepared::read`]. It has no `Debug` on
/// purpose.
pub(super) struct Prepared {
    /// The version of each source, taken before the read, so that a change during the read causes
    /// another read.
    versions: Vec<u64>,
    /// The fields of each credential, in the order of the slice given to [`Prepared::read`].
    pub(super) fields: Vec<Fields>,
    /// Scrubs every secret that could be read and passed [`checked`].
    pub(super) scrubber: Arc<Scrubber>,
}

/// The fields that a credential adds to a request, or the reason why its secret is unusable.
pub(super) type Fields = Result<Vec<(HeaderName, HeaderValue)>, String>;

impl Prepared {
    /// Reads every secret. An unusable secret makes only its own credential unusable. Fails if no
    /// scrubber can be built for the secrets.
    pub(super) fn read(credentials: &[Arc<Credential>]) -> Result<Self, String> {
        let mut versions = Vec::new();
        let mut fields = Vec::new();
        let mut forms = Forms::default();
        for credential in credentials {
            let Credential { kind, name, .. } = &**credential;
            let made = kind.sources().map(|(field, source)| {
                versions.push(source.version());
                let secret = source.read()?;
                let secret = checked(&secret)?;
                kind.add_forms(secret, name, &mut forms);
                Ok((field.clone(), kind.header_value(secret)?))
            });
            // Collected first: an unusable secret must not keep the others from being scrubbed.
            let made: Vec<Result<_, String>> = made.collect();
            fields.push(made.into_iter().collect());
        }
        Ok(Self {
            versions,
            fields,
            scrubber: Arc::new(Scrubber::new(forms)?),
        })
    }

    /// Whether responses must be scrubbed of these secrets.
    pub(super) fn has_secrets(&self) -> bool {
        self.scrubber.shortest() < usize::MAX
    }

    /// Whether no source has changed since the read.
    pub(super) fn is_current(&self, credentials: &[Arc<Credential>]) -> bool {
        let sources = credentials.iter().flat_map(|c| c.kind.sources());
        let mut versions = sources.zip(&self.versions);
        versions.all(|((_, source), version)| source.version() == *version)
    }
}

impl CredentialKind {
    /// The fields that this kind sets, each with the source of its secret; none for tokens.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&HeaderName, &Arc<dyn SecretSource>)> {
        let (list, one) = match self {
            Self::SetHeaders(headers) => (headers.as_slice(), None),
            Self::Basic { password, .. } => (&[][..], Some((&AUTHORIZATION, password))),
            Self::Bearer(token) => (&[][..], Some((&AUTHORIZATION, token))),
            // Tokens are prepared by their `TokenSource`.
            Self::Token { .. } => (&[][..], None),
        };
        list.iter().map(|(name, source)| (name, source)).chain(one)
    }

    /// Fields that are sent with a token and that a client could set as well.
    pub(super) fn extra_fields(&self) -> impl Iterator<Item = &HeaderName> {
        let login = match self {
            Self::Token { login, .. } => login.as_ref(),
            _ => None,
        };
        login.and_then(Login::account_field).into_iter()
    }

    fn header_value(&self, secret: &str) -> Result<HeaderValue, String> {
        match self {
            Self::SetHeaders(_) => sensitive(&[secret]),
            Self::Basic { username, .. } => basic_value(username, secret),
            Self::Bearer(_) | Self::Token { .. } => bearer_value(secret),
        }
    }

    fn add_forms(&self, secret: &str, name: &str, forms: &mut Forms) {
        forms.add_secret(secret.as_bytes(), name);
        match self {
            // The value may begin with a scheme, such as `Bearer …`, so the text after the first
            // space is a secret too.
            Self::SetHeaders(_) => {
                if let Some((_scheme, bare)) = secret.split_once(' ') {
                    forms.add_secret(bare.as_bytes(), name);
                }
            }
            Self::Basic { username, .. } => {
                let pair = user_and_password(username, secret);
                forms.add_base64(pair.as_bytes(), name);
            }
            Self::Bearer(_) | Self::Token { .. } => {}
        }
    }
}

/// The field value `Bearer SECRET`, marked as sensitive.
pub(super) fn bearer_value(secret: &str) -> Result<HeaderValue, String> {
    sensitive(&["Bearer ", secret])
}

/// The field value `Basic …` with `username:password` in base64, marked as sensitive.
pub(super) fn basic_value(username: &str, password: &str) -> Result<HeaderValue, String> {
    let pair = user_and_password(username, password);
    let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
    sensitive(&["Basic ", &encoded])
}

fn sensitive(parts: &[&str]) -> Result<HeaderValue, String> {
    // `concat` allocates once: a buffer that grew would leave an unwiped copy behind.
    let text = Wiped(Zeroizing::new(parts.concat()));
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(text))
        .map_err(|_| "it has bytes that a header must not contain".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

pub(super) fn user_and_password(username: &str, password: &str) -> Zeroizing<String> {
    Zeroizing::new([username, ":", password].concat())
}

/// Trims the secret (files end with a line feed) and checks its length.
pub(super) fn checked(secret: &str) -> Result<&str, String> {
    let secret = secret.trim();
    match secret.len() {
        0 => Err("it is empty".to_owned()),
        1..=MAX_SECRET => Ok(secret),
        _ => Err(format!("it is longer than {MAX_SECRET} bytes")),
    }
}
