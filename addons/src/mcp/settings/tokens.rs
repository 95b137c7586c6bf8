//! Reads `tokens`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::hidden::HiddenValue;
use crate::contract::settings::{Fields, Setting};
use crate::contract::{SecretFiles, SecretSource};

/// A shorter token could be guessed.
const MIN_TOKEN: usize = 16;
/// The longest token. Longer ones do not fit into a field of a request.
const MAX_TOKEN: usize = 4096;

/// Access for callers without a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenSettings {
    /// The token of callers that are the built-in container `token-agent`; `None` switches it off.
    pub agent: Option<AgentToken>,
    /// The tokens of people; `None` switches them off.
    pub human_jwt: Option<Arc<HumanJwt>>,
}

/// Where a token comes from. Its `Debug` never shows the token.
#[derive(Clone)]
pub enum AgentToken {
    /// Given in `mcp.yaml`, or by an environment variable.
    Value(HiddenValue),
    /// Read from a file, and again whenever it changes.
    File(PathBuf, Arc<dyn SecretSource>),
}

impl TokenSettings {
    pub(super) fn read(fields: &Fields<'_>, files: &dyn SecretFiles) -> Self {
        Self {
            agent: fields.optional("agent", |at| agent(&at, files)),
            human_jwt: HumanJwt::read(fields),
        }
    }
}

fn agent(at: &Setting<'_>, files: &dyn SecretFiles) -> Option<AgentToken> {
    if at.is_mapping() {
        let path = PathBuf::from(at.fields()?.need("file")?.text()?);
        if let Err(error) = files.check(&path) {
            at.refuse(format!("{} cannot be read: {error}", path.display()));
            return None;
        }
        let source = files.source(&path);
        return Some(AgentToken::File(path, source));
    }
    let text = at.any_text()?;
    if text.is_empty() {
        return None;
    }
    if !is_token(text) {
        at.refuse(format!(
            "must have {MIN_TOKEN} to {MAX_TOKEN} visible ASCII characters other than spaces; an empty token switches the access off"
        ));
        return None;
    }
    Some(AgentToken::Value(HiddenValue::of(text)))
}

fn is_token(text: &str) -> bool {
    (MIN_TOKEN..=MAX_TOKEN).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl AgentToken {
    /// The token now; `None` if its file is empty, cannot be read, or holds no valid token.
    pub fn read(&self) -> Option<Arc<Zeroizing<String>>> {
        let token = match self {
            Self::Value(value) => Arc::new(value.0.clone()),
            Self::File(_, source) => source.read().ok()?,
        };
        is_token(&token).then_some(token)
    }
}

impl PartialEq for AgentToken {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(one), Self::Value(other)) => one == other,
            (Self::File(one, _), Self::File(other, _)) => one == other,
            _ => false,
        }
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("…"),
            Self::File(path, _) => write!(f, "File({})", path.display()),
        }
    }
}

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
