//! Finds the flag that would have allowed a denied flow.

use std::collections::BTreeMap;

use addons::contract::{Code, GATEWAY};
use addons::policy::{HOST_RULE, parse_entry};
use serde_json::Value;

use super::super::logins::is_injected;
use super::super::specification::HOST_NAME;
use super::super::{is_loopback, parse_host_port};

/// The codes of denials for which no flag exists and which concern one repository.
const OF_REPOSITORIES: [Code; 5] = [
    Code::BotBranchRestricted,
    Code::BranchDeletionBlocked,
    Code::WriteNotAllowed,
    Code::PushTooLarge,
    Code::ApiBlocked,
];
/// The codes of denials of a host, a port or an address.
const DESTINATIONS: [Code; 3] = [
    Code::DomainNotAllowed,
    Code::PortNotAllowed,
    Code::AddressNotAllowed,
];
/// The ports that an entry of the allowlist permits by default.
pub const USUAL_PORTS: [u64; 2] = [80, 443];

/// A denied subject, and what would allow it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Denied {
    /// The host. The port is added if the port was denied, or if the host was denied for a
    /// connection to an unusual port. The repository is added if the repository was denied.
    pub what: String,
    /// The flag that would have allowed the flow, or the code of the denial.
    pub remedy: String,
}

impl Denied {
    /// The subject and the remedy of a denied flow, from its line of the audit log. `masked` are the
    /// variables that the command sees as placeholders, by placeholder.
    pub fn of(flow: &Value, host: &str, port: u64, masked: &BTreeMap<String, String>) -> Self {
        let code = text(flow, "code");
        let is_of_destination = DESTINATIONS.iter().any(|known| known.as_str() == code);
        let (what, remedy) = match code {
            _ if is_of_destination && is_host_port(host, port) => (
                format!("{host}:{port}"),
                format!("--allow-host-port {port}"),
            ),
            _ if code == Code::DomainNotAllowed.as_str() && is_own(host) => (
                host.to_owned(),
                format!("{code}: this is the sandbox itself, which is at 127.0.0.1"),
            ),
            // `--allow` refuses these.
            _ if is_of_destination && is_loopback(host) => (host.to_owned(), code.to_owned()),
            _ if code == Code::DomainNotAllowed.as_str() && parse_entry(host).is_ok() => {
                let host = named(host, port);
                (host.clone(), format!("--allow {host}"))
            }
            _ if is_asked(flow) && code == Code::ApprovalPending.as_str() => {
                let host = named(host, port);
                (host.clone(), format!("--allow {host}   (nobody answered)"))
            }
            _ if is_asked(flow) => (named(host, port), code.to_owned()),
            _ if code == Code::PortNotAllowed.as_str() => {
                (format!("{host}:{port}"), format!("--allow {host}:{port}"))
            }
            _ if code == Code::CredentialMisuse.as_str() => {
                (host.to_owned(), misuse(masked, host, text(flow, "rule")))
            }
            _ if code == Code::RepoNotAuthorized.as_str() => {
                match repository(host, text(flow, "path")) {
                    Some(repo) => (format!("{host}/{repo}"), format!("--repo {repo}")),
                    None => (host.to_owned(), code.to_owned()),
                }
            }
            _ => {
                let judges_repo = OF_REPOSITORIES.iter().any(|known| known.as_str() == code);
                let repo = repository(host, text(flow, "path")).filter(|_| judges_repo);
                let what = repo.map_or_else(|| host.to_owned(), |repo| format!("{host}/{repo}"));
                (what, code.to_owned())
            }
        };
        Self { what, remedy }
    }

    /// Whether a person's decision about the host is another answer to this denial.
    pub fn waits_for_a_person(&self) -> bool {
        self.remedy.starts_with("--allow ") || self.remedy == Code::ApprovalRejected.as_str()
    }
}

/// A member of a line of the audit log; empty if it is missing or no text.
pub fn text<'a>(flow: &'a Value, name: &str) -> &'a str {
    flow.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A host as `--allow` takes it, with the port if that is an unusual one.
pub fn named(host: &str, port: u64) -> String {
    match USUAL_PORTS.contains(&port) {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    }
}

/// Whether a person was asked about the host of a denied flow.
fn is_asked(flow: &Value) -> bool {
    let codes = [Code::ApprovalPending, Code::ApprovalRejected];
    let code = text(flow, "code");
    text(flow, "rule") == HOST_RULE && codes.iter().any(|asked| asked.as_str() == code)
}

/// Whether `--allow-host-port` can permit a destination.
fn is_host_port(host: &str, port: u64) -> bool {
    ["localhost", "127.0.0.1"].contains(&host) && parse_host_port(&port.to_string()).is_ok()
}

/// The remedy for a placeholder that was sent to a host for which there is no credential.
fn misuse(masked: &BTreeMap<String, String>, host: &str, placeholder: &str) -> String {
    match masked.get(placeholder) {
        Some(name) if is_injected(name, host) => {
            format!("--with-logins   (the command has a placeholder for ${name})")
        }
        Some(name) => format!(
            "{}   (a placeholder for ${name}; credentials.yaml has no entry for this host)",
            Code::CredentialMisuse.as_str()
        ),
        None => Code::CredentialMisuse.as_str().to_owned(),
    }
}

/// Whether a host is the proxy or the sandbox by the names that the sandbox's `/etc/hosts` has.
fn is_own(host: &str) -> bool {
    host == GATEWAY || host == HOST_NAME
}

/// Returns `owner/name` from a path on a git host or its API; `None` if the path names no
/// repository.
pub fn repository(host: &str, path: &str) -> Option<String> {
    let path = path.trim_start_matches('/');
    // `/repos/OWNER/NAME`, or `/api/v3/repos/OWNER/NAME` if the API has no host of its own.
    let path = match host.starts_with("api.") || path.starts_with("api/") {
        true => path.split_once("repos/")?.1,
        false => path,
    };
    let mut parts = path.split('/');
    let (owner, name) = (parts.next()?, parts.next()?);
    let name = name.strip_suffix(".git").unwrap_or(name);
    let is_plain = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    (is_plain(owner) && is_plain(name)).then(|| format!("{owner}/{name}"))
}
