//! OAuth logins of command-line tools: their token files, their refresh, and the placeholders that
//! containers see.

mod file;
mod placeholders;
mod refresh;
mod settings;
mod state;
mod tokens;

use std::fmt;

use http::{HeaderName, Uri};

use crate::contract::{Authority, Host, UrlSecrets};

pub use file::{TokenFile, Tokens};
pub use settings::OauthSettings;

pub(super) use placeholders::PlaceholderAnswer;
use refresh::Refusal;
pub(super) use tokens::OauthTokens;

/// The request field that names the account of a token.
static ACCOUNT_FIELD: HeaderName = HeaderName::from_static("chatgpt-account-id");

/// The OAuth client id of Codex and OpenCode, which is public.
const CODEX_CLIENT: &str = "app_EMoamEEZ73f0CkXaXp7hrann";
/// The OAuth client id of the Gemini command-line tool.
const GEMINI_CLIENT: &str =
    "681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com";
/// The OAuth client id of Claude Code.
const CLAUDE_CLIENT: &str = "9d1c250a-e61b-44d9-88ed-5944d1962f5e";
const OPENAI_TOKEN_URL: &str = "https://auth.openai.com/oauth/token";
const GOOGLE_TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
const CLAUDE_TOKEN_URL: &str = "https://platform.claude.com/v1/oauth/token";

/// The tool that a token file belongs to, which determines its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// `auth.json` of the Codex tool.
    Codex,
    /// `oauth_creds.json` of the Gemini tool.
    Gemini,
    /// `auth.json` of OpenCode, which has an entry for each service.
    OpenCode,
    /// `.credentials.json` of Claude Code after a login with a subscription.
    Claude,
    /// `access_token`, `refresh_token` and `expires_at` in seconds.
    Generic,
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 5] = [
        Self::Codex,
        Self::Gemini,
        Self::OpenCode,
        Self::Claude,
        Self::Generic,
    ];

    /// The provider with this name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// The name in the configuration and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::OpenCode => "opencode",
            Self::Claude => "claude",
            Self::Generic => "generic",
        }
    }

    /// Its token endpoint and its OAuth client id, if all of its logins share them.
    pub const fn oauth_client(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Codex | Self::OpenCode => Some((OPENAI_TOKEN_URL, CODEX_CLIENT)),
            Self::Gemini => Some((GOOGLE_TOKEN_URL, GEMINI_CLIENT)),
            Self::Claude => Some((CLAUDE_TOKEN_URL, CLAUDE_CLIENT)),
            Self::Generic => None,
        }
    }
}

/// The `https://` URL of a token endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUrl {
    text: String,
    authority: Authority,
    path: String,
    /// The parts of the URL that come from variables.
    secrets: UrlSecrets,
}

impl TokenUrl {
    /// Parses an `https://` URL. The host must be a name; user information and a query are refused.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "must be an https:// URL with a host name, without user or query";
        let uri: Uri = text.parse().map_err(|_| WRONG)?;
        let authority = uri
            .authority()
            .filter(|_| uri.scheme_str() == Some("https"));
        let authority = authority.ok_or(WRONG)?.as_str();
        let authority = Authority::parse(authority, Some(443)).map_err(|_| WRONG)?;
        if uri.query().is_some() || !matches!(authority.host, Host::Name(_)) {
            return Err(WRONG);
        }
        Ok(Self {
            text: text.to_owned(),
            authority,
            path: uri.path().to_owned(),
            secrets: UrlSecrets::default(),
        })
    }

    /// The host and port.
    pub fn host(&self) -> (Host, u16) {
        (self.authority.host.clone(), self.authority.port)
    }
}

impl fmt::Debug for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.secrets.redact(&self.text))
    }
}

impl fmt::Display for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A login: the format of its token file, and its token endpoint. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The tool, which determines the file's format.
    pub provider: Provider,
    /// The token endpoint.
    pub token_url: TokenUrl,
    /// The OAuth client id.
    pub client_id: String,
    /// The scopes that a refresh requests; if empty, the scopes granted at the login.
    pub scopes: Vec<String>,
    /// The key of the login in OpenCode's file, which may hold several logins.
    pub entry: String,
}

impl Login {
    /// The request field that names the account to the host, if the provider has one.
    pub fn account_field(&self) -> Option<&'static HeaderName> {
        match self.provider {
            Provider::Codex | Provider::OpenCode => Some(&ACCOUNT_FIELD),
            Provider::Gemini | Provider::Claude | Provider::Generic => None,
        }
    }
}

#[cfg(test)]
mod tests;
