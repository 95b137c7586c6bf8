//! Collects the settings that sandboxes need to use the proxy, for the admin API.

use std::net::SocketAddr;

use addons::credentials::{CredentialEntry, KindSettings, TokenSources};

use crate::admin::{ActiveCredential, SandboxSettings};
use crate::config::Config;

/// Returns the settings of sandboxes under a configuration. They contain no secret.
pub fn settings(config: &Config, token_sources: &TokenSources) -> SandboxSettings {
    let listen = &config.proxy.listen;
    let addresses = |all: &[SocketAddr]| all.iter().map(ToString::to_string).collect();
    let certs = &config.proxy.certs_dir;
    // Absolute, since a client may have another working directory.
    let certs = std::path::absolute(certs).unwrap_or_else(|_| certs.clone());
    let credentials = config.addons.credentials.active.iter();
    SandboxSettings {
        proxy: addresses(&listen.proxy),
        mcp: addresses(&listen.mcp),
        certs_dir: certs.display().to_string(),
        credentials: credentials
            .map(|entry| active(entry, token_sources))
            .collect(),
    }
}

fn active(entry: &CredentialEntry, token_sources: &TokenSources) -> ActiveCredential {
    let (kind, headers) = match &entry.kind {
        KindSettings::SetHeaders(headers) => {
            let names = headers.iter().map(|(name, _)| name.to_string());
            ("set_headers", names.collect())
        }
        KindSettings::Basic { .. } => ("basic", authorization()),
        KindSettings::Bearer(_) => ("bearer", authorization()),
        KindSettings::GithubApp(_) => ("github_app", authorization()),
        KindSettings::Oauth(_) => ("oauth", authorization()),
    };
    let hosts = entry.hosts.iter();
    let mut active = ActiveCredential {
        name: entry.name.clone(),
        kind: kind.to_owned(),
        hosts: hosts.map(|(host, port)| format!("{host}:{port}")).collect(),
        headers,
        ..ActiveCredential::default()
    };
    if let KindSettings::Oauth(oauth) = &entry.kind {
        active.provider = Some(oauth.login.provider.as_str().to_owned());
        active.entry = Some(oauth.login.entry.clone());
        active.account = token_sources.account(&entry.name, oauth);
    }
    active
}

fn authorization() -> Vec<String> {
    vec![http::header::AUTHORIZATION.to_string()]
}
