//! The `github_app` key of an entry in `credentials.yaml`.

use std::collections::BTreeMap;

use super::Installation;
use crate::contract::Host;
use crate::contract::settings::Setting;
use crate::credentials::{SecretReader, SecretSetting};
use crate::forges::ForgeHosts;

const ACCESS: [(&str, &str); 3] = [("read", "read"), ("write", "write"), ("admin", "admin")];

/// Settings of a GitHub App installation. The proxy requests separate tokens for each lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// The installation, and the permissions of its tokens.
    pub installation: Installation,
    /// The App's RSA key in PEM.
    pub private_key: SecretSetting,
}

impl AppSettings {
    /// Reads the settings of an entry, whose hosts must all belong to one forge.
    pub(in crate::credentials) fn read<'a>(
        at: &Setting<'a>,
        hosts: &[(Host, u16)],
        forges: &[ForgeHosts],
        secrets: &SecretReader<'a>,
    ) -> Option<Self> {
        let forge = forge_of(hosts, forges);
        let is_elsewhere = |(named, _): &&(Host, u16)| {
            forge.is_none_or(|forge| forge.all_hosts().all(|known| known != named))
        };
        if let Some((elsewhere, _)) = hosts.iter().find(is_elsewhere) {
            // Refused, since the App's token would be sent to this host.
            at.refuse(match forge {
            None => "none of the entry's hosts belongs to a forge in git.hosts of policy.yaml: add the forge there, or change hosts of this entry".to_owned(),
            Some(forge) => format!("{elsewhere} does not belong to the forge {} (see git.hosts in policy.yaml): all hosts of a github_app entry must belong to one forge", forge.host),
        });
        }
        let fields = at.fields()?;
        let app_id = fields.need("app_id").and_then(|at| at.parse(app_id));
        let installation_id = fields.need("installation_id");
        let installation_id = installation_id.and_then(|at| at.parse(installation));
        let private_key = fields.need("private_key").and_then(|at| secrets.read(&at));
        let reading = BTreeMap::from([("contents".to_owned(), "read".to_owned())]);
        let permissions = fields.or("permissions", reading, |at| permissions(&at));
        let (api, prefix) = api_of(forge?);
        Some(Self {
            installation: Installation {
                app_id: app_id?,
                installation_id: installation_id?,
                api,
                prefix,
                permissions,
            },
            private_key: private_key?,
        })
    }
}

fn permissions(at: &Setting<'_>) -> Option<BTreeMap<String, String>> {
    let granted = at.entries()?.filter_map(|(key, access)| {
        let access = access.one_of(&ACCESS)?;
        Some((key.name.to_string(), access.to_owned()))
    });
    let granted: BTreeMap<_, _> = granted.collect();
    if granted.is_empty() {
        at.refuse("must grant a permission, such as contents: read");
    }
    Some(granted)
}

/// Parses the id of an App: a number, or a client id such as `Iv1.8a61`. It becomes the `iss` claim
/// of a JWT.
fn app_id(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    let valid = !text.is_empty() && text.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be an id of letters, digits and dots")
}

/// Parses the id of an installation. It becomes a segment of a URL path, so `..` must not pass.
fn installation(text: &str) -> Result<String, &'static str> {
    let valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    valid
        .then(|| text.to_owned())
        .ok_or("must be an id of digits")
}

/// The first forge that one of the hosts belongs to, if any.
fn forge_of<'f>(hosts: &[(Host, u16)], forges: &'f [ForgeHosts]) -> Option<&'f ForgeHosts> {
    let is_named = |host: &Host| hosts.iter().any(|(named, _)| named == host);
    forges.iter().find(|forge| forge.all_hosts().any(is_named))
}

/// The host and path prefix of a forge's API. A GitHub Enterprise server without a separate API
/// host serves the API below `/api/v3`.
fn api_of(forge: &ForgeHosts) -> (Host, &'static str) {
    match &forge.api {
        Some(api) if *api != forge.host => (api.clone(), ""),
        _ => (forge.host.clone(), "/api/v3"),
    }
}
