//! Entries of `credentials.yaml` whose tokens run out and are got again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use addons::contract::Host;
use addons::contract::settings::{Fields, Setting};
use addons::credentials::SecretSetting;
use addons::credentials::github_app::{AppSettings, Installation};
use addons::credentials::oauth::{Login, OauthSettings, Provider, TokenUrl};

use super::GitHost;

const PROVIDERS: [(&str, Provider); 5] = [
    ("codex", Provider::Codex),
    ("gemini", Provider::Gemini),
    ("opencode", Provider::OpenCode),
    ("claude", Provider::Claude),
    ("generic", Provider::Generic),
];

const ACCESS: [(&str, &str); 3] = [("read", "read"), ("write", "write"), ("admin", "admin")];

/// The entry of OpenCode's file that is used where none is named.
const OPENCODE_ENTRY: &str = "openai";

/// Reads an `oauth`.
pub fn oauth<'a>(
    at: &Setting<'a>,
    keep: &mut impl FnMut(Setting<'a>) -> Option<SecretSetting>,
    keep_file: &mut impl FnMut(Setting<'a>) -> Option<PathBuf>,
) -> Option<OauthSettings> {
    at.mapping(|fields| {
        let token_file = fields.need("token_file").and_then(keep_file);
        let provider = fields.need("provider").and_then(|at| at.one_of(&PROVIDERS));
        let client_secret = fields.find("client_secret").and_then(&mut *keep);
        let scopes = fields.list("scopes", |at| at.text().map(str::to_owned));
        let provider = provider?;
        let entry = match provider {
            Provider::OpenCode => fields.or("entry", OPENCODE_ENTRY, |at| at.text()),
            _ => OPENCODE_ENTRY,
        };
        let text = |at: Setting<'_>| at.text().map(str::to_owned);
        let url = |at: Setting<'_>| at.parse(TokenUrl::parse);
        let known_url = provider
            .token_url()
            .and_then(|url| TokenUrl::parse(url).ok());
        let token_url = known_or_given(fields, "token_url", known_url, url);
        let known_id = provider.client_id().map(str::to_owned);
        let client_id = known_or_given(fields, "client_id", known_id, text);
        Some(OauthSettings {
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
    })?
}

/// What the provider knows by itself may be given all the same; else it must be.
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

/// Reads a `github_app` for hosts that must be those of one git host.
pub fn github_app<'a>(
    at: &Setting<'a>,
    hosts: &[(Host, u16)],
    git: &[GitHost],
    keep: &mut impl FnMut(Setting<'a>) -> Option<SecretSetting>,
) -> Option<AppSettings> {
    let host = git_host_of(hosts, git);
    let is_elsewhere = |(named, _): &&(Host, u16)| {
        host.is_none_or(|host| host.all_hosts().all(|known| known != named))
    };
    if let Some((elsewhere, _)) = hosts.iter().find(is_elsewhere) {
        // The token would be sent to it.
        at.refuse(match host {
            None => "none of its hosts is a git host, or the API of one, in git.hosts of policy.yaml".to_owned(),
            Some(host) => format!("{elsewhere} does not belong to {} in git.hosts of policy.yaml: an App is of one git host", host.host),
        });
    }
    at.mapping(|fields| {
        let [app_id, installation_id] =
            ["app_id", "installation_id"].map(|key| fields.need(key).and_then(|at| at.parse(id)));
        let private_key = fields.need("private_key").and_then(&mut *keep);
        let reading = BTreeMap::from([("contents".to_owned(), "read".to_owned())]);
        let permissions = fields.or("permissions", reading, |at| permissions(&at));
        let (api, prefix) = api_of(host?);
        Some(AppSettings {
            installation: Installation {
                app_id: app_id?,
                installation_id: installation_id?,
                api,
                prefix,
                permissions,
            },
            private_key: private_key?,
        })
    })?
}

fn permissions(at: &Setting<'_>) -> Option<BTreeMap<String, String>> {
    let granted = at.entries()?.filter_map(|(key, access)| {
        let access = access.one_of(&ACCESS)?;
        Some((key.name.to_string(), access.to_owned()))
    });
    let granted: BTreeMap<_, _> = granted.collect();
    if granted.is_empty() {
        at.refuse("must grant something, such as contents: read");
    }
    Some(granted)
}

/// A number, or the client id that GitHub gives Apps as well: it becomes part of a path.
fn id(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    let valid = !text.is_empty() && text.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be an id of letters and digits")
}

/// The git host that some of the hosts belong to.
fn git_host_of<'g>(hosts: &[(Host, u16)], git: &'g [GitHost]) -> Option<&'g GitHost> {
    let is_named = |host: &Host| hosts.iter().any(|(named, _)| named == host);
    git.iter().find(|git| git.all_hosts().any(is_named))
}

/// An Enterprise server has its API under a path of its own host.
fn api_of(git: &GitHost) -> (Host, &'static str) {
    match &git.api {
        Some(api) if *api != git.host => (api.clone(), ""),
        _ => (git.host.clone(), "/api/v3"),
    }
}
