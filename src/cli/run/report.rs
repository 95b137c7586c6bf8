//! Collects the hosts that a run requested, for the report at its end and for `--learn`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use addons::contract::{Code, GATEWAY};
use serde_json::Value;

use super::changes::Change;
use super::logins::is_injected;
use super::specification::HOST_NAME;
use crate::cli::exit::printable;

/// Limit on the pairs of host and remedy that are counted separately; denials of further pairs are
/// counted together. Also the limit on the files that are listed; further files are counted.
const MAX_LINES: usize = 200;
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
/// Whether `--allow-host-port` can permit a destination.
fn is_host_port(host: &str, port: u64) -> bool {
    ["localhost", "127.0.0.1"].contains(&host) && super::parse_host_port(&port.to_string()).is_ok()
}

/// The ports that an entry of the allowlist permits by default.
const USUAL_PORTS: [u64; 2] = [80, 443];

/// The denials of a run, and the hosts that it requested.
#[derive(Debug, Default)]
pub struct Report {
    /// The variables that the command sees as placeholders, by placeholder.
    masked: BTreeMap<String, String>,
    /// Denials, each with its count.
    denied: BTreeMap<Denied, u64>,
    /// The number of denials that are not counted in `denied`, which has at most [`MAX_LINES`]
    /// entries.
    others: u64,
    /// The requested pairs of host and port, up to 10 × [`MAX_LINES`]; flows to further pairs are
    /// ignored. The value says whether at least one flow to the pair was not denied.
    requested: BTreeMap<(String, u64), bool>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Denied {
    /// The host. The port is added if the port was denied, or if the host was denied for a
    /// connection to an unusual port. The repository is added if the repository was denied.
    what: String,
    /// The flag that would have allowed the flow, or the code of the denial.
    remedy: String,
}

/// The files of [`Protected::changes`](super::protected::Protected::changes), or the reason why they
/// are unknown.
pub type Changes = Result<Vec<(PathBuf, Change)>, String>;

/// The list of the files that the command made, changed or removed and that the host would execute
/// or obey; empty if there are none.
pub fn text_of_changes(changes: &Changes) -> String {
    let changes = match changes {
        Ok(changes) if changes.is_empty() => return String::new(),
        Ok(changes) => changes,
        Err(why) => {
            return format!(
                "unified-proxy: it is unknown which files the command made or changed ({}); look at the directory before you work in it\n",
                printable(why)
            );
        }
    };
    let mut text = "unified-proxy: files that git, a shell, an editor, an agent or a package manager may execute or obey were made or changed while the command ran; look at them before you work in the directory\n".to_owned();
    for (path, change) in changes.iter().take(MAX_LINES) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}{change}", printable(&path.display().to_string()));
    }
    if let Some(more) = changes
        .len()
        .checked_sub(MAX_LINES)
        .filter(|more| *more > 0)
    {
        let _ = writeln!(text, "  and {more} more");
    }
    text
}

impl Report {
    /// An empty report. `masked` are the variables that the command sees as placeholders, by
    /// placeholder.
    pub fn new(masked: BTreeMap<String, String>) -> Self {
        Self {
            masked,
            ..Self::default()
        }
    }

    /// Counts the flow of a line of the audit log, or all flows of a folded line. Ignores a line
    /// without a host.
    pub fn add(&mut self, flow: &Value) {
        let text = |name: &str| flow.get(name).and_then(Value::as_str).unwrap_or_default();
        let host = text("host");
        if host.is_empty() {
            return;
        }
        let count = flow.get("count").and_then(Value::as_u64).unwrap_or(1);
        let is_denied = text("outcome") == "denied";
        // A line that stands for flows to several hosts.
        if host == "*" {
            self.others += if is_denied { count } else { 0 };
            return;
        }
        let port = match text("kind") {
            // The name of a DNS question, for a connection to a port that is not known.
            "dns" => 443,
            _ => flow.get("port").and_then(Value::as_u64).unwrap_or(443),
        };
        let key = (host.to_owned(), port);
        let has_room = self.requested.len() < MAX_LINES * 10 || self.requested.contains_key(&key);
        if has_room && text("kind") != "mcp" {
            *self.requested.entry(key).or_default() |= !is_denied;
        }
        if !is_denied {
            return;
        }
        let code = text("code");
        let (what, remedy) = match code {
            _ if is_host_port(host, port) && DESTINATIONS.iter().any(|c| c.as_str() == code) => (
                format!("{host}:{port}"),
                format!("--allow-host-port {port}"),
            ),
            _ if code == Code::DomainNotAllowed.as_str() && is_own(host) => (
                host.to_owned(),
                format!("{code}: this is the sandbox itself, which is at 127.0.0.1"),
            ),
            _ if code == Code::DomainNotAllowed.as_str() && super::parse_host(host).is_ok() => {
                let host = match USUAL_PORTS.contains(&port) {
                    true => host.to_owned(),
                    false => format!("{host}:{port}"),
                };
                (host.clone(), format!("--allow {host}"))
            }
            _ if code == Code::PortNotAllowed.as_str() => {
                (format!("{host}:{port}"), format!("--allow {host}:{port}"))
            }
            _ if code == Code::CredentialMisuse.as_str() => {
                (host.to_owned(), self.misuse(host, text("rule")))
            }
            _ if code == Code::RepoNotAuthorized.as_str() => match repository(host, text("path")) {
                Some(repo) => (format!("{host}/{repo}"), format!("--repo {repo}")),
                None => (host.to_owned(), code.to_owned()),
            },
            _ => {
                let judges_repo = OF_REPOSITORIES.iter().any(|known| known.as_str() == code);
                let repo = repository(host, text("path")).filter(|_| judges_repo);
                let what = repo.map_or_else(|| host.to_owned(), |repo| format!("{host}/{repo}"));
                (what, code.to_owned())
            }
        };
        let denied = Denied { what, remedy };
        match self.denied.len() < MAX_LINES || self.denied.contains_key(&denied) {
            true => *self.denied.entry(denied).or_default() += count,
            false => self.others += count,
        }
    }

    /// The remedy for a placeholder that was sent to a host for which there is no credential.
    fn misuse(&self, host: &str, placeholder: &str) -> String {
        match self.masked.get(placeholder) {
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

    /// The list of denials with their counts; empty if there is no denial.
    pub fn denials(&self) -> String {
        let mut text = String::new();
        if self.denied.is_empty() {
            return text;
        }
        let width = self.denied.keys().map(|denied| denied.what.len()).max();
        let width = width.unwrap_or(0).min(60);
        text.push_str("unified-proxy: denied\n");
        for (Denied { what, remedy }, count) in &self.denied {
            let times = if *count == 1 { "time " } else { "times" };
            let (what, remedy) = (printable(what), printable(remedy));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {what:width$}  {count:>4} {times}  {remedy}");
        }
        if self.others > 0 {
            let _ = writeln!(text, "  and {} further denials", self.others);
        }
        text
    }

    /// An allowlist in YAML with the requested hosts and ports.
    pub fn allowlist(&self) -> String {
        let mut text = "# The hosts that one run requested. Read the list before you use it: the \
                        command could request any host.\nversion: 1\ndomains:"
            .to_owned();
        let mut hosts: BTreeMap<&str, (Vec<u64>, bool)> = BTreeMap::new();
        for ((host, port), allowed) in &self.requested {
            let (ports, was_allowed) = hosts.entry(host).or_default();
            ports.push(*port);
            *was_allowed |= allowed;
        }
        if hosts.is_empty() {
            text.push_str(" []");
        }
        text.push('\n');
        for (host, (ports, allowed)) in hosts {
            let note = if allowed { "" } else { "  # was denied" };
            let host = Value::from(host);
            let _ = match ports.iter().all(|port| USUAL_PORTS.contains(port)) {
                true => writeln!(text, "  - {host}{note}"),
                false => writeln!(text, "  - {{ domain: {host}, ports: {ports:?} }}{note}"),
            };
        }
        text
    }
}

/// Whether a host is the proxy or the sandbox by the names that the sandbox's `/etc/hosts` has.
fn is_own(host: &str) -> bool {
    host == GATEWAY || host == HOST_NAME
}

/// Returns `owner/name` from a path on a git host or its API; `None` if the path names no
/// repository.
fn repository(host: &str, path: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denied_hosts_are_listed_with_their_counts_and_with_a_flag_or_the_code() {
        let mut report = Report::default();
        for (host, port, code, path, kind) in [
            (
                "packages.example.com",
                443,
                "domain_not_allowed",
                "",
                "connect",
            ),
            ("packages.example.com", 53, "domain_not_allowed", "", "dns"),
            ("git.example.com", 8443, "port_not_allowed", "", "connect"),
            (
                "github.com",
                443,
                "repo_not_authorized",
                "/octo/cat.git/info/refs",
                "http",
            ),
            (
                "api.github.com",
                443,
                "api_blocked",
                "/repos/octo/cat/pulls/1/merge",
                "http",
            ),
            (
                "github.com",
                443,
                "bot_branch_restricted",
                "/octo/cat.git/git-receive-pack",
                "http",
            ),
            (
                "github.com",
                443,
                "malformed_request",
                "/octo/cat.git/git-receive-pack",
                "http",
            ),
        ] {
            report.add(&json!({
                "kind": kind, "host": host, "port": port, "outcome": "denied", "code": code, "path": path,
            }));
        }
        report.add(&json!({ "kind": "http", "host": "api.example.com", "port": 443, "outcome": "allowed" }));
        let lines = report.denials();
        let lines: Vec<Vec<&str>> = lines
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines,
            [
                vec!["api.github.com/octo/cat", "1", "time", "api_blocked"],
                vec![
                    "git.example.com:8443",
                    "1",
                    "time",
                    "--allow",
                    "git.example.com:8443"
                ],
                vec!["github.com", "1", "time", "malformed_request"],
                vec!["github.com/octo/cat", "1", "time", "--repo", "octo/cat"],
                vec!["github.com/octo/cat", "1", "time", "bot_branch_restricted"],
                vec![
                    "packages.example.com",
                    "2",
                    "times",
                    "--allow",
                    "packages.example.com"
                ],
            ]
        );
    }

    #[test]
    fn a_denial_names_the_variable_of_a_placeholder_and_no_flag_that_would_not_help() {
        let masked = [("p1", "ANTHROPIC_API_KEY"), ("p2", "MY_TOKEN")];
        let masked = masked.map(|(placeholder, name)| (placeholder.to_owned(), name.to_owned()));
        for (host, code, rule, expected, not_expected) in [
            (
                "api.anthropic.com",
                "credential_misuse",
                "p1",
                "--with-logins   (the command has a placeholder for $ANTHROPIC_API_KEY)",
                "credential_misuse",
            ),
            (
                "a.example.com",
                "credential_misuse",
                "p1",
                "$ANTHROPIC_API_KEY",
                "--with-logins",
            ),
            (
                "a.example.com",
                "credential_misuse",
                "p2",
                "$MY_TOKEN",
                "--with-logins",
            ),
            (
                "a.example.com",
                "credential_misuse",
                "p3",
                "credential_misuse",
                "$",
            ),
            (
                "unified-proxy",
                "domain_not_allowed",
                "",
                "the sandbox itself",
                "--allow",
            ),
            (
                "sandbox",
                "domain_not_allowed",
                "",
                "the sandbox itself",
                "--allow",
            ),
            (
                "localhost",
                "domain_not_allowed",
                "",
                "domain_not_allowed",
                "--allow",
            ),
        ] {
            let mut report = Report::new(masked.clone().into());
            report.add(&json!({
                "kind": "http", "host": host, "port": 443, "outcome": "denied", "code": code, "rule": rule,
            }));
            let text = report.denials();
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains(not_expected), "{text}");
        }
    }

    #[test]
    fn a_repository_is_found_in_paths_of_git_hosts_and_of_their_apis() {
        for (host, path, expected) in [
            ("github.com", "/octo/cat.git/info/refs", Some("octo/cat")),
            ("api.github.com", "/repos/octo/cat/pulls", Some("octo/cat")),
            (
                "git.example.com",
                "/api/v3/repos/octo/cat",
                Some("octo/cat"),
            ),
            ("git.example.com", "/api/graphql", None),
            ("api.github.com", "/user/repos", None),
            ("api.github.com", "/repositories/123", None),
        ] {
            let found = repository(host, path);
            assert_eq!(found.as_deref(), expected, "{host}{path}");
        }
    }

    #[test]
    fn the_learned_allowlist_names_unusual_ports_and_marks_denied_hosts() {
        let mut report = Report::default();
        for (host, port, outcome) in [
            ("a.example.com", 443, "allowed"),
            ("b.example.com", 8443, "denied"),
        ] {
            report.add(&json!({ "host": host, "port": port, "outcome": outcome, "code": "domain_not_allowed" }));
        }
        report.add(
            &json!({ "kind": "dns", "host": "a.example.com", "port": 53, "outcome": "allowed" }),
        );
        report.add(
            &json!({ "kind": "mcp", "host": "unified-proxy", "port": 8090, "outcome": "allowed" }),
        );
        report.add(&json!({ "host": "*", "port": 443, "outcome": "denied", "count": 7 }));
        let text = report.allowlist();
        assert!(text.contains("  - \"a.example.com\"\n"), "{text}");
        assert!(
            text.contains("  - { domain: \"b.example.com\", ports: [8443] }  # was denied\n"),
            "{text}"
        );
        assert_eq!(text.matches("\n  - ").count(), 2, "{text}");
    }

    #[test]
    fn a_host_allowed_after_a_denial_is_no_longer_marked_as_denied_even_if_the_list_is_full() {
        let mut report = Report::default();
        for number in 0..MAX_LINES * 10 + 1 {
            report.add(&json!({ "host": format!("h{number}.example.com"), "outcome": "denied" }));
        }
        report.add(&json!({ "host": "h0.example.com", "outcome": "allowed" }));
        let text = report.allowlist();
        assert!(text.contains("  - \"h0.example.com\"\n"), "{text}");
        assert_eq!(text.matches("# was denied").count(), MAX_LINES * 10 - 1);
    }
}
