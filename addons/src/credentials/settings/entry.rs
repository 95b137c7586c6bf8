//! One entry of `credentials.yaml`.

use std::collections::HashSet;

use http::HeaderName;

use super::secret::SecretReader;
use super::{CredentialEntry, KindSettings, SecretSetting};
use crate::contract::settings::{Fields, Setting};
use crate::contract::{Authority, ContainerId, Host};
use crate::credentials::github_app::AppSettings;
use crate::credentials::oauth::OauthSettings;
use crate::forges::ForgeHosts;

const HTTPS_PORT: u16 = 443;

/// Headers that an entry may not set, since they frame the message or belong to the proxy. All
/// headers that begin with `proxy-` are refused too.
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

/// Reads an entry, and its secrets through `secrets`. The hosts of a GitHub App must all belong to
/// one of `forges`. Reports every error. Returns `None` if the name, the hosts or the kind could
/// not be read.
pub(super) fn read<'a>(
    at: &Setting<'a>,
    forges: &[ForgeHosts],
    secrets: &SecretReader<'a>,
) -> Option<CredentialEntry> {
    let fields = at.fields()?;
    let name = fields.need("name").and_then(|at| at.parse(name));
    let hosts = fields
        .need("hosts")
        .and_then(|at| at.filled_list(|at| at.parse(host)));
    let named = hosts.as_deref().unwrap_or_default();
    let kind = kind(&fields, at, (named, forges), secrets);
    let remove_headers = fields.list("remove_headers", |at| at.parse(header_name));
    let remove_query = fields.list("remove_query", |at| at.parse(parameter));
    let remove_cookies = fields.list("remove_cookies", |at| at.parse(parameter));
    let containers = limit(&fields, "containers", container);
    let repos = limit(&fields, "repos", repository);
    Some(CredentialEntry {
        name: name?,
        hosts: hosts?,
        kind: kind?,
        remove_headers,
        remove_query,
        remove_cookies,
        containers,
        repos,
        origin: at.origin(),
    })
}

/// Reads a list that limits an entry; `None` if it is absent. An empty list is refused, since the
/// entry would match no request.
fn limit<T>(
    fields: &Fields<'_>,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, &'static str>,
) -> Option<Vec<T>> {
    let at = fields.find(key)?;
    Some(at.filled_list(|at| at.parse(&parse)).unwrap_or_default())
}

/// Reads the kind of an entry. Reports an error unless the entry has exactly one kind.
fn kind<'a>(
    fields: &Fields<'a>,
    at: &Setting<'a>,
    (hosts, forges): (&[(Host, u16)], &[ForgeHosts]),
    secrets: &SecretReader<'a>,
) -> Option<KindSettings> {
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
    let github_app = github_app.and_then(|at| AppSettings::read(&at, hosts, forges, secrets));
    let oauth = oauth.and_then(|at| OauthSettings::read(&at, secrets));
    let set_headers = set_headers.and_then(|at| headers(&at, secrets));
    let basic = basic.and_then(|at| basic_pair(&at.fields()?, secrets));
    let bearer = bearer.and_then(|at| secrets.read_for_header(&at));
    set_headers
        .map(KindSettings::SetHeaders)
        .or(basic)
        .or(bearer.map(KindSettings::Bearer))
        .or(github_app.map(KindSettings::GithubApp))
        .or(oauth.map(KindSettings::Oauth))
}

fn headers<'a>(
    at: &Setting<'a>,
    secrets: &SecretReader<'a>,
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
                headers.extend(secrets.read_for_header(&value).map(|secret| (name, secret)));
            }
            Err(wrong) => value.refuse_key(key, wrong),
        }
    }
    if headers.is_empty() {
        at.refuse("must set at least one header");
    }
    Some(headers)
}

fn basic_pair<'a>(fields: &Fields<'a>, secrets: &SecretReader<'a>) -> Option<KindSettings> {
    let username = fields.need("username").and_then(|at| {
        at.parse(|text| match text {
            "" => Err("must not be empty"),
            _ if text.contains(':') => Err("must not contain a colon"),
            _ => Ok(text.to_owned()),
        })
    });
    let password = fields.need("password").and_then(|at| secrets.read(&at));
    Some(KindSettings::Basic {
        username: username?,
        password: password?,
    })
}

fn host(text: &str) -> Result<(Host, u16), String> {
    let authority = Authority::parse(text, Some(HTTPS_PORT))
        .map_err(|error| format!("must be a name, or name:port, without a wildcard: {error}"))?;
    match authority.host {
        Host::Name(_) => Ok((authority.host, authority.port)),
        Host::Address(_) => Err("must be a name: an address is not accepted".to_owned()),
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let valid = (1..=64).contains(&text.len()) && text.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be 1 to 64 letters, digits or _ . -")
}

fn container(text: &str) -> Result<ContainerId, &'static str> {
    ContainerId::parse(text).ok_or("must be a container's id: 1 to 128 letters, digits or _ . -")
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
