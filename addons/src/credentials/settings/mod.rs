//! `credentials.yaml`

mod entry;
mod secret;

use std::collections::HashMap;

use http::HeaderName;

use super::github_app::AppSettings;
use super::oauth::OauthSettings;
use crate::contract::settings::{FileReport, Files, Passthrough};
use crate::contract::{Allowlist, ContainerId, Host, Origin, SecretFiles};
use crate::forges::ForgeHosts;

pub(super) use secret::SecretReader;
pub use secret::SecretSetting;

/// The entries of the file.
#[derive(Clone, Debug, Default)]
pub struct CredentialSettings {
    /// The entries without an empty secret.
    pub active: Vec<CredentialEntry>,
    /// The hosts of all entries, also of those with an empty secret, each with its entry's name.
    pub hosts: Vec<(Host, String)>,
}

/// An entry of `credentials.yaml`.
#[derive(Clone, Debug)]
pub struct CredentialEntry {
    /// The name in the audit, in metrics, and in the `[REDACTED:name]` that replaces an echo.
    pub name: String,
    /// The hosts and ports to which the secret may be sent.
    pub hosts: Vec<(Host, u16)>,
    /// How the secret is put into a request.
    pub kind: KindSettings,
    /// Request fields to remove, in which a client could send its own key.
    pub remove_headers: Vec<HeaderName>,
    /// Query parameters to remove.
    pub remove_query: Vec<String>,
    /// Cookies to remove.
    pub remove_cookies: Vec<String>,
    /// The containers whose requests may get the secret; `None` for all.
    pub containers: Option<Vec<ContainerId>>,
    /// A request gets the secret only if its path names one of these repositories: see
    /// [`Credential::repos`](super::Credential::repos).
    pub repos: Option<Vec<String>>,
    /// Its place in the file.
    pub origin: Origin,
}

/// How a secret is put into a request.
#[derive(Clone, Debug)]
pub enum KindSettings {
    /// Each secret as the whole value of its field.
    SetHeaders(Vec<(HeaderName, SecretSetting)>),
    /// As `Authorization: Basic`.
    Basic {
        /// Not a secret.
        username: String,
        /// The secret.
        password: SecretSetting,
    },
    /// As `Authorization: Bearer`.
    Bearer(SecretSetting),
    /// As a token of a GitHub App's installation; each lease gets its own tokens.
    GithubApp(AppSettings),
    /// As the access token of an OAuth login.
    Oauth(OauthSettings),
}

impl CredentialSettings {
    /// Reads the settings. Accesses the files that they name, so it may block.
    pub fn read(files: &Files<'_>, secret_files: &dyn SecretFiles) -> Self {
        let forges = ForgeHosts::read(files);
        let mut settings = Self::default();
        let mut inactive = Vec::new();
        let mut names = HashMap::new();
        let mut token_files = HashMap::new();
        files.credentials.fields().list("credentials", |at| {
            let secrets = SecretReader::default();
            let entry = entry::read(&at, &forges, &secrets)?;
            let line = at.place().line;
            if let Some(before) = names.insert(entry.name.clone(), line) {
                at.refuse(format!("has the same name as the entry in line {before}"));
            }
            if let KindSettings::Oauth(oauth) = &entry.kind
                && let file = secret_files.real_path(&oauth.token_file)
                && let Some(before) = token_files.insert(file, line)
            {
                // Both entries would refresh the login, and most refresh tokens work only once.
                at.refuse(format!(
                    "has the same token_file as the entry in line {before}: name all hosts in one entry"
                ));
            }
            let hosts = entry.hosts.iter();
            let hosts = hosts.map(|(host, _)| (host.clone(), entry.name.clone()));
            settings.hosts.extend(hosts);
            if let Some(variables) = secrets.empty() {
                inactive.push((entry.name, variables));
                return Some(());
            }
            // An entry whose file cannot be read stays, since the file may appear later.
            secrets.each_file(|path| {
                if let Err(error) = secret_files.check(path) {
                    let (name, path) = (&entry.name, path.display());
                    let message = format!("{name}: {path} cannot be read: {error}");
                    at.report().warn_at(at.place(), message);
                }
            });
            settings.active.push(entry);
            Some(())
        });
        warn_of_inactive(files.credentials.report(), &inactive);
        settings
    }

    /// Adds the active entries of `other`. Skips an entry of `other` if an active entry of `self`
    /// has the same name or is for one of the same hosts. An inactive entry of `self` changes no
    /// request, so it displaces none.
    pub fn extend(&mut self, other: Self) {
        let names = |entry: &CredentialEntry| self.active.iter().any(|own| own.name == entry.name);
        let has_host = |host: &Host| {
            let mut hosts = self.active.iter().flat_map(|own| &own.hosts);
            hosts.any(|(own, _)| own == host)
        };
        let is_new = |entry: &CredentialEntry| {
            !names(entry) && !entry.hosts.iter().any(|(host, _)| has_host(host))
        };
        let added: Vec<_> = other.active.into_iter().filter(is_new).collect();
        for entry in added {
            let hosts = entry.hosts.iter();
            let hosts = hosts.map(|(host, _)| (host.clone(), entry.name.clone()));
            self.hosts.extend(hosts);
            self.active.push(entry);
        }
    }

    /// Reports an error for each host that has an entry and is in `tls.passthrough`. Warns of
    /// personal tokens for a forge, of hosts and ports that the allowlist denies, and of two
    /// credentials for the same requests.
    pub fn check(&self, files: &Files<'_>, passthrough: &Passthrough<'_>, allowlist: &Allowlist) {
        // The proxy cannot inject a credential into TLS that it does not decrypt.
        for (host, name) in &self.hosts {
            passthrough.refuse_host(host, &format!("has the credential {name}"));
        }
        let report = files.credentials.report().report;
        let forges = ForgeHosts::read(files);
        let entries = self.active.iter();
        let personal = entries
            .clone()
            .filter_map(|entry| entry.personal_token(&forges));
        let unlisted = entries.flat_map(|entry| entry.unlisted(allowlist));
        let later = self.active.iter().enumerate();
        let shared = later.flat_map(|(at, later)| {
            let earlier = self.active.iter().take(at);
            earlier.filter_map(|earlier| later.shares_requests_with(earlier))
        });
        personal
            .chain(unlisted)
            .chain(shared)
            .for_each(|warning| report.warn(warning));
    }
}

impl CredentialEntry {
    /// The warning for a basic or bearer token of a git forge: the containers share the token, and
    /// the token has all rights of its owner.
    fn personal_token(&self, forges: &[ForgeHosts]) -> Option<String> {
        let is_token = matches!(
            self.kind,
            KindSettings::Basic { .. } | KindSettings::Bearer(_)
        );
        let is_forges = |(host, _): &(Host, u16)| {
            forges
                .iter()
                .any(|forge| forge.all_hosts().any(|h| h == host))
        };
        (is_token && self.hosts.iter().any(is_forges)).then(|| {
            format!(
                "{}: {} is one token for all its containers, with all rights of its owner: github_app gives each container a token for its own repositories",
                self.origin, self.name
            )
        })
    }

    /// The warning for two entries that apply to the same requests. Entries that are limited to
    /// containers or repositories are meant to share a host.
    fn shares_requests_with(&self, earlier: &Self) -> Option<String> {
        let is_limited = |entry: &Self| entry.containers.is_some() || entry.repos.is_some();
        let shared = self.hosts.iter().find(|host| earlier.hosts.contains(host));
        let (host, port) = shared.filter(|_| !is_limited(self) && !is_limited(earlier))?;
        Some(format!(
            "{}: {} is for {host}:{port}, and so is {} at {}: a request there gets both, or only {} if both set the same header: remove one entry, or leave its variable empty",
            self.origin, self.name, earlier.name, earlier.origin, earlier.name
        ))
    }

    /// Warnings for hosts and ports that the allowlist denies: the credential is sent there only
    /// if a person grants the host.
    fn unlisted(&self, allowlist: &Allowlist) -> impl Iterator<Item = String> {
        let (name, origin) = (&self.name, &self.origin);
        self.hosts.iter().filter_map(move |(host, port)| match allowlist.find(host) {
            None => Some(format!(
                "{origin}: {name} is for {host}, which no entry of allowlist.yaml allows, so it is sent there only if a person grants the host: add \"- {host}\" under domains, or take the host out"
            )),
            Some(entry) if !entry.ports.contains(port) => Some(format!(
                "{origin}: {name} is for {host}:{port}, and the entry at {} allows other ports only: add {port} to its ports, or take the host out",
                entry.origin
            )),
            Some(_) => None,
        })
    }
}

/// Warns of all inactive entries in one line: most installations use only a few of the shipped
/// entries.
fn warn_of_inactive(report: FileReport<'_>, inactive: &[(String, String)]) {
    let entries = inactive.iter().map(|(name, variables)| {
        let variables = if variables.is_empty() {
            "no variable"
        } else {
            variables
        };
        format!("{name} ({variables})")
    });
    let entries: Vec<_> = entries.collect();
    let (count, verb) = match entries.len() {
        0 => return,
        1 => ("1 credential".to_owned(), "is inactive, its secret is"),
        count => (
            format!("{count} credentials"),
            "are inactive, their secrets are",
        ),
    };
    let entries = entries.join(", ");
    report.warn(format_args!("{count} {verb} empty: {entries}"));
}
