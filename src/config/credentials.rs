//! `credentials.yaml`

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use addons::contract::{Authority, ContainerId, Host};
use http::HeaderName;

use super::decode::{At, Fields};
use super::document::Document;
use super::later;
use super::tree::Variable;
use super::{CredentialConfig, CredentialKind, SecretConfig};

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
    pub active: Vec<CredentialConfig>,
    /// The hosts of all, with the credential's name.
    pub hosts: Vec<(Host, String)>,
}

/// Decodes the file; without one nothing is injected.
pub fn read(document: &Document<'_>) -> Credentials {
    let mut credentials = Credentials {
        active: Vec::new(),
        hosts: Vec::new(),
    };
    let mut names = HashMap::new();
    document.decode(|fields| {
        fields.list("credentials", |at| {
            let entry = at.mapping(|fields| entry(fields, &at, document))??;
            let line = at.place().line;
            if let Some(before) = names.insert(entry.config.name.clone(), line) {
                at.refuse(format!("its name is taken already, in line {before}"));
            }
            let hosts = entry.config.hosts.iter();
            credentials
                .hosts
                .extend(hosts.map(|(host, _)| (host.clone(), entry.config.name.clone())));
            if entry.is_active(&at) {
                credentials.active.push(entry.config);
            }
            Some(())
        })
    });
    credentials
}

struct Entry<'a> {
    config: CredentialConfig,
    secrets: Vec<Secret<'a>>,
}

impl Entry<'_> {
    /// An empty secret makes an entry inactive, which is said; so is a file that cannot be read,
    /// whose entry stays: the file may come later.
    fn is_active(&self, at: &At<'_>) -> bool {
        let name = &self.config.name;
        let warn = |message: String| at.report().warn_at(at.place(), message);
        let empty: Vec<_> = self.secrets.iter().filter(|s| s.is_empty()).collect();
        if !empty.is_empty() {
            let mut variables: Vec<_> = empty.iter().flat_map(|secret| secret.unset()).collect();
            variables.dedup();
            warn(match variables.as_slice() {
                [] => format!("{name} is inactive: its secret is empty"),
                _ => format!("{name} is inactive: {} is empty", variables.join(", ")),
            });
            return false;
        }
        for secret in &self.secrets {
            if let SecretConfig::File(path) = &secret.config
                && let Err(error) = readable(path)
            {
                warn(format!(
                    "{name}: {} cannot be read: {error}",
                    path.display()
                ));
            }
        }
        true
    }
}

/// A secret, and the variables that it was made from.
struct Secret<'a> {
    config: SecretConfig,
    variables: &'a [Variable],
}

impl Secret<'_> {
    /// Whether it is missing, wholly or in a part that a variable was to give.
    fn is_empty(&self) -> bool {
        let nothing = match &self.config {
            SecretConfig::Value(value) => value.trim().is_empty(),
            SecretConfig::File(path) => path.as_os_str().is_empty(),
        };
        nothing || self.unset().next().is_some()
    }

    fn unset(&self) -> impl Iterator<Item = &str> {
        let empty = self.variables.iter().filter(|variable| variable.empty);
        empty.map(|variable| variable.name.as_str())
    }
}

fn entry<'a>(fields: &mut Fields<'a>, at: &At<'a>, document: &Document<'_>) -> Option<Entry<'a>> {
    let name = fields.need("name").and_then(|at| at.parse(name));
    let hosts = fields
        .need("hosts")
        .and_then(|at| at.filled_list(|at| at.parse(host)));
    let mut secrets = Vec::new();
    let kind = kind(fields, at, &mut secrets);
    let remove_headers = fields.list("remove_headers", |at| at.parse(header_name));
    let remove_query = fields.list("remove_query", |at| at.parse(parameter));
    let remove_cookies = fields.list("remove_cookies", |at| at.parse(parameter));
    let containers = limit(fields, "containers", container);
    let repos = limit(fields, "repos", repository);
    Some(Entry {
        config: CredentialConfig {
            name: name?,
            hosts: hosts?,
            kind: kind?,
            remove_headers,
            remove_query,
            remove_cookies,
            containers,
            repos,
            origin: document.origin(at.place()),
        },
        secrets,
    })
}

/// What narrows an entry; an empty list would let nothing through.
fn limit<T>(
    fields: &mut Fields<'_>,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, &'static str>,
) -> Option<Vec<T>> {
    let at = fields.find(key)?;
    Some(at.filled_list(|at| at.parse(&parse)).unwrap_or_default())
}

/// Reads the one kind that an entry must have.
fn kind<'a>(
    fields: &mut Fields<'a>,
    at: &At<'a>,
    secrets: &mut Vec<Secret<'a>>,
) -> Option<CredentialKind> {
    let mut keep = |at: At<'a>| {
        let found = secret(&at)?;
        let config = found.config.clone();
        secrets.push(found);
        Some(config)
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
    if let Some(at) = github_app {
        later::github_app(&at);
    }
    if let Some(at) = oauth {
        later::oauth(&at);
    }
    let set_headers = set_headers.and_then(|at| headers(&at, &mut keep));
    let basic = basic.and_then(|at| at.mapping(|fields| basic_pair(fields, &mut keep))?);
    let bearer = bearer.and_then(|at| header_secret(at, &mut keep));
    set_headers
        .map(CredentialKind::SetHeaders)
        .or(basic)
        .or(bearer.map(CredentialKind::Bearer))
}

fn headers<'a>(
    at: &At<'a>,
    keep: &mut impl FnMut(At<'a>) -> Option<SecretConfig>,
) -> Option<Vec<(HeaderName, SecretConfig)>> {
    let mut headers: Vec<(HeaderName, SecretConfig)> = Vec::new();
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
    fields: &mut Fields<'a>,
    keep: &mut impl FnMut(At<'a>) -> Option<SecretConfig>,
) -> Option<CredentialKind> {
    let username = fields.need("username").and_then(|at| {
        at.parse(|text| match text {
            "" => Err("must be a user's name"),
            _ if text.contains(':') => Err("a user's name has no colon here"),
            _ => Ok(text.to_owned()),
        })
    });
    let password = fields.need("password").and_then(keep);
    Some(CredentialKind::Basic {
        username: username?,
        password: password?,
    })
}

/// A secret that stands in a header as it is.
fn header_secret<'a>(
    at: At<'a>,
    keep: &mut impl FnMut(At<'a>) -> Option<SecretConfig>,
) -> Option<SecretConfig> {
    let secret = keep(at.clone())?;
    if let SecretConfig::Value(value) = &secret
        && !value
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
    {
        at.refuse("has a character that cannot stand in a header (a line break at its end?)");
    }
    Some(secret)
}

fn secret<'a>(at: &At<'a>) -> Option<Secret<'a>> {
    if at.is_mapping() {
        let file = at.mapping(|fields| fields.need("file")?.scalar())??;
        return Some(Secret {
            config: SecretConfig::File(PathBuf::from(file.text.as_str())),
            variables: &file.variables,
        });
    }
    let scalar = at.scalar()?;
    Some(Secret {
        config: SecretConfig::Value(scalar.text.clone()),
        variables: &scalar.variables,
    })
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

fn readable(path: &Path) -> io::Result<()> {
    // Asked before it is opened: opening a pipe waits for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path).map(drop)
}
