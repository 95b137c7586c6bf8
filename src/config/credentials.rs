//! `credentials.yaml`

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use addons::contract::settings::{Document, Fields, Scalar, Setting, Variable};
use addons::contract::{Authority, ContainerId, Host, SecretFiles};
use addons::credentials::{CredentialSettings, KindSettings, SecretSetting};
use http::HeaderName;

use super::GitHost;
use super::tokens;
use crate::secret_files::FilesOnDisk;

const HTTPS_PORT: u16 = 443;

/// Headers that frame the message or are the proxy's own affair.
const UNSETTABLE: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-container-id",
];

const KINDS: &str = "set_headers, basic, bearer, github_app, oauth";

/// `credentials.yaml`, and what the other files are checked against.
pub struct Credentials {
    /// Those that are active.
    pub active: Vec<CredentialSettings>,
    /// The hosts of all, with the credential's name.
    pub hosts: Vec<(Host, String)>,
}

/// Decodes the file; without one nothing is injected. An App asks the API of one of `git`.
pub fn read(document: &Document<'_>, git: &[GitHost]) -> Credentials {
    let mut credentials = Credentials {
        active: Vec::new(),
        hosts: Vec::new(),
    };
    let mut inactive = Vec::new();
    let mut names = HashMap::new();
    let mut token_files = HashMap::new();
    document.fields().list("credentials", |at| {
        let entry = entry(&at.fields()?, &at, git)?;
        let line = at.place().line;
        if let Some(before) = names.insert(entry.config.name.clone(), line) {
            at.refuse(format!("its name is taken already, in line {before}"));
        }
        if let KindSettings::Oauth(oauth) = &entry.config.kind
            && let Some(before) = token_files.insert(FilesOnDisk.real_path(&oauth.token_file), line)
        {
            // Two would refresh it, and most refresh tokens work once.
            at.refuse(format!(
                "its token_file is that of the entry in line {before}: name all hosts in one entry"
            ));
        }
        let hosts = entry.config.hosts.iter();
        credentials
            .hosts
            .extend(hosts.map(|(host, _)| (host.clone(), entry.config.name.clone())));
        match entry.empty_secrets() {
            Some(variables) => inactive.push((entry.config.name, variables)),
            None => {
                entry.warn_of_files(&at);
                credentials.active.push(entry.config);
            }
        }
        Some(())
    });
    warn_of_inactive(document, &inactive);
    credentials
}

/// One line for all of them: most installations use a few of the shipped entries.
fn warn_of_inactive(document: &Document<'_>, inactive: &[(String, String)]) {
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
    document
        .report()
        .warn(format_args!("{count} {verb} empty: {entries}"));
}

struct Entry<'a> {
    config: CredentialSettings,
    secrets: Vec<Secret<'a>>,
}

impl Entry<'_> {
    /// The variables without a value of those secrets that are empty, which makes the entry
    /// inactive. `None`: no secret is.
    fn empty_secrets(&self) -> Option<String> {
        let empty: Vec<_> = self.secrets.iter().filter(|s| s.is_empty()).collect();
        let mut variables: Vec<_> = empty.iter().flat_map(|secret| secret.unset()).collect();
        variables.dedup();
        (!empty.is_empty()).then(|| variables.join(", "))
    }

    /// An entry whose file cannot be read stays: the file may come later.
    fn warn_of_files(&self, at: &Setting<'_>) {
        for secret in &self.secrets {
            if let SecretSetting::File(path) = &secret.config
                && let Err(error) = FilesOnDisk.check(path)
            {
                let (name, path) = (&self.config.name, path.display());
                let message = format!("{name}: {path} cannot be read: {error}");
                at.report().warn_at(at.place(), message);
            }
        }
    }
}

/// A secret, and the variables that it was made from.
struct Secret<'a> {
    config: SecretSetting,
    variables: &'a [Variable],
}

impl Secret<'_> {
    /// Whether it is missing, wholly or in a part that a variable was to give.
    fn is_empty(&self) -> bool {
        let nothing = match &self.config {
            SecretSetting::Value(value) => value.trim().is_empty(),
            SecretSetting::File(path) => path.as_os_str().is_empty(),
        };
        nothing || self.unset().next().is_some()
    }

    fn unset(&self) -> impl Iterator<Item = &str> {
        let empty = self.variables.iter().filter(|variable| variable.empty);
        empty.map(|variable| variable.name.as_str())
    }
}

fn entry<'a>(fields: &Fields<'a>, at: &Setting<'a>, git: &[GitHost]) -> Option<Entry<'a>> {
    let name = fields.need("name").and_then(|at| at.parse(name));
    let hosts = fields
        .need("hosts")
        .and_then(|at| at.filled_list(|at| at.parse(host)));
    let mut secrets = Vec::new();
    let named = hosts.as_deref().unwrap_or_default();
    let kind = kind(fields, at, (named, git), &mut secrets);
    let remove_headers = fields.list("remove_headers", |at| at.parse(header_name));
    let remove_query = fields.list("remove_query", |at| at.parse(parameter));
    let remove_cookies = fields.list("remove_cookies", |at| at.parse(parameter));
    let containers = limit(fields, "containers", container);
    let repos = limit(fields, "repos", repository);
    Some(Entry {
        config: CredentialSettings {
            name: name?,
            hosts: hosts?,
            kind: kind?,
            remove_headers,
            remove_query,
            remove_cookies,
            containers,
            repos,
            origin: at.origin(),
        },
        secrets,
    })
}

/// What narrows an entry; an empty list would let nothing through.
fn limit<T>(
    fields: &Fields<'_>,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, &'static str>,
) -> Option<Vec<T>> {
    let at = fields.find(key)?;
    Some(at.filled_list(|at| at.parse(&parse)).unwrap_or_default())
}

/// Reads the one kind that an entry must have.
fn kind<'a>(
    fields: &Fields<'a>,
    at: &Setting<'a>,
    (hosts, git): (&[(Host, u16)], &[GitHost]),
    secrets: &mut Vec<Secret<'a>>,
) -> Option<KindSettings> {
    let secrets = RefCell::new(secrets);
    let mut keep = |at: Setting<'a>| {
        let found = secret(&at)?;
        let config = found.config.clone();
        secrets.borrow_mut().push(found);
        Some(config)
    };
    let mut keep_file = |at: Setting<'a>| {
        let (found, path) = file(at.scalar()?);
        secrets.borrow_mut().push(found);
        Some(path)
    };
    let set_headers = fields.find("set_headers");
    let basic = fields.find("basic");
    let bearer = fields.find("bearer");
    let github_app = fields.find("github_app");
    let oauth = fields.find("oauth");
    let given = [&set_headers, &basic, &bearer, &github_app, &oauth];
    let count = given.into_iter().flatten().count();
    if count != 1 {
        at.refuse(format!("must have exactly one of {KINDS}, and has {count}"));
    }
    let github_app = github_app.and_then(|at| tokens::github_app(&at, hosts, git, &mut keep));
    let oauth = oauth.and_then(|at| tokens::oauth(&at, &mut keep, &mut keep_file));
    let set_headers = set_headers.and_then(|at| headers(&at, &mut keep));
    let basic = basic.and_then(|at| basic_pair(&at.fields()?, &mut keep));
    let bearer = bearer.and_then(|at| header_secret(at, &mut keep));
    set_headers
        .map(KindSettings::SetHeaders)
        .or(basic)
        .or(bearer.map(KindSettings::Bearer))
        .or(github_app.map(KindSettings::GithubApp))
        .or(oauth.map(KindSettings::Oauth))
}

fn headers<'a>(
    at: &Setting<'a>,
    keep: &mut impl FnMut(Setting<'a>) -> Option<SecretSetting>,
) -> Option<Vec<(HeaderName, SecretSetting)>> {
    let mut headers: Vec<(HeaderName, SecretSetting)> = Vec::new();
    let mut seen = HashSet::new();
    for (key, value) in at.entries()? {
        match header_name(&key.name) {
            Ok(name) => {
                let reserved = UNSETTABLE.contains(&name.as_str());
                if reserved || name.as_str().starts_with("proxy-") {
                    value.refuse_key(key, "this header cannot be set");
                } else if !seen.insert(name.as_str().replace('_', "-")) {
                    value.refuse_key(
                        key,
                        "this header is set already, perhaps in another spelling",
                    );
                }
                headers.extend(header_secret(value, keep).map(|secret| (name, secret)));
            }
            Err(wrong) => value.refuse_key(key, wrong),
        }
    }
    if headers.is_empty() {
        at.refuse("must set at least one header");
    }
    Some(headers)
}

fn basic_pair<'a>(
    fields: &Fields<'a>,
    keep: &mut impl FnMut(Setting<'a>) -> Option<SecretSetting>,
) -> Option<KindSettings> {
    let username = fields.need("username").and_then(|at| {
        at.parse(|text| match text {
            "" => Err("must be a user's name"),
            _ if text.contains(':') => Err("a user's name has no colon here"),
            _ => Ok(text.to_owned()),
        })
    });
    let password = fields.need("password").and_then(keep);
    Some(KindSettings::Basic {
        username: username?,
        password: password?,
    })
}

/// A secret that stands in a header as it is.
fn header_secret<'a>(
    at: Setting<'a>,
    keep: &mut impl FnMut(Setting<'a>) -> Option<SecretSetting>,
) -> Option<SecretSetting> {
    let secret = keep(at.clone())?;
    if let SecretSetting::Value(value) = &secret
        && !value
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
    {
        at.refuse("has a character that cannot stand in a header (a line break at its end?)");
    }
    Some(secret)
}

fn secret<'a>(at: &Setting<'a>) -> Option<Secret<'a>> {
    if at.is_mapping() {
        let scalar = at.fields()?.need("file")?.scalar()?;
        return Some(file(scalar).0);
    }
    let scalar = at.scalar()?;
    Some(Secret {
        config: SecretSetting::Value(scalar.text.clone()),
        variables: &scalar.variables,
    })
}

/// What is kept in a file, and where the file is.
fn file(scalar: &Scalar) -> (Secret<'_>, PathBuf) {
    let path = PathBuf::from(scalar.text.as_str());
    let secret = Secret {
        config: SecretSetting::File(path.clone()),
        variables: &scalar.variables,
    };
    (secret, path)
}

fn host(text: &str) -> Result<(Host, u16), String> {
    let authority = Authority::parse(text, Some(HTTPS_PORT))
        .map_err(|error| format!("must be a name, or name:port, without a wildcard: {error}"))?;
    match authority.host {
        Host::Name(_) => Ok((authority.host, authority.port)),
        Host::Address(_) => Err("must be a name: no certificate vouches for an address".to_owned()),
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let valid = (1..=64).contains(&text.len()) && text.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be 1 to 64 of letters, digits, and _ . -")
}

fn container(text: &str) -> Result<ContainerId, &'static str> {
    ContainerId::parse(text)
        .ok_or("must be a container's id: 1 to 128 of letters, digits, and _ . -")
}

fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| "must be a header's name")
}

fn parameter(text: &str) -> Result<String, &'static str> {
    let valid = !text.is_empty() && !text.contains(char::is_control);
    valid
        .then(|| text.to_owned())
        .ok_or("must be the name of a parameter or cookie")
}

fn repository(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let part = |part: &str| !part.is_empty() && part.bytes().all(fits);
    let valid = text.split('/').count() == 2 && text.split('/').all(part);
    valid.then(|| text.to_owned()).ok_or("must be owner/name")
}
