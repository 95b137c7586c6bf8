//! The `oauth` key of an entry in `credentials.yaml`.

use std::path::PathBuf;

use super::{Login, Provider, TokenUrl};
use crate::contract::UrlSecrets;
use crate::contract::settings::{Fields, Setting};
use crate::credentials::{SecretReader, SecretSetting};

/// The default entry of OpenCode's file.
const OPENCODE_ENTRY: &str = "openai";

/// A login that is kept in a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OauthSettings {
    /// The format of the token file, and the token endpoint.
    pub login: Login,
    /// The file, which is rewritten after each refresh.
    pub token_file: PathBuf,
    /// The secret of the OAuth client, which is sent with each refresh; `None` for a client without
    /// a secret.
    pub client_secret: Option<SecretSetting>,
}

impl OauthSettings {
    pub(in crate::credentials) fn read<'a>(
        at: &Setting<'a>,
        secrets: &SecretReader<'a>,
    ) -> Option<Self> {
        let fields = at.fields()?;
        let token_file = fields.need("token_file");
        let token_file = token_file.and_then(|at| secrets.read_file(&at));
        let known = Provider::ALL.map(|provider| (provider.as_str(), provider));
        let provider = fields.need("provider").and_then(|at| at.one_of(&known));
        let client_secret = fields.find("client_secret");
        let client_secret = client_secret.and_then(|at| secrets.read(&at));
        let text = |at: Setting<'_>| at.text().map(str::to_owned);
        let scopes = fields.list("scopes", text);
        let provider = provider?;
        let entry = match provider {
            Provider::OpenCode => fields.or("entry", OPENCODE_ENTRY, |at| at.text()),
            _ => OPENCODE_ENTRY,
        };
        let (known_url, known_id) = provider.oauth_client().unzip();
        let known_url = known_url.and_then(|url| TokenUrl::parse(url).ok());
        let url = |at: Setting<'_>| {
            let url = at.parse(TokenUrl::parse)?;
            let secrets = UrlSecrets::of(&url.text, &at.expanded());
            Some(TokenUrl { secrets, ..url })
        };
        let token_url = known_or_given(&fields, "token_url", known_url, url);
        let known_id = known_id.map(str::to_owned);
        let client_id = known_or_given(&fields, "client_id", known_id, text);
        Some(Self {
            login: Login {
                provider,
                token_url: token_url?,
                client_id: client_id?,
                scopes,
                entry: entry.to_owned(),
            },
            token_file: token_file?,
            client_secret,
        })
    }
}

/// Reads a field that is required unless the provider has a default.
fn known_or_given<'a, T>(
    fields: &Fields<'a>,
    key: &'static str,
    known: Option<T>,
    read: impl FnOnce(Setting<'a>) -> Option<T>,
) -> Option<T> {
    match known {
        Some(known) => Some(fields.or(key, known, read)),
        None => fields.need(key).and_then(read),
    }
}
