//! The configuration: one file of code for each YAML file, parsed whole into one immutable value.
//!
//! The reader with places, variables and the report is `addons::contract::settings`.

mod allowlist;
mod budgets;
mod files;
mod mcp;
mod policy;
mod proxy;
mod types;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub use addons::contract::settings::{ConfigError, ConfigErrors};
use addons::contract::settings::{Env, Files, Report};
use addons::contract::{EntryMap, Host, HostPattern};
use addons::credentials::CredentialSettings;

use proxy::Proxy;
pub use types::*;

use crate::secret_files::FilesOnDisk;

/// The files of a configuration directory.
pub const FILES: [&str; 5] = [
    "proxy.yaml",
    "allowlist.yaml",
    "policy.yaml",
    "credentials.yaml",
    "mcp.yaml",
];

/// Which defaults stand behind `proxy.yaml`; what the files say wins over either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The appliance: every interface, the system's directories.
    Serve,
    /// A person's machine: loopback, and state below the working directory.
    Dev,
}

impl Profile {
    fn listen(self) -> Listen {
        let (address, ports, admin) = match self {
            Self::Serve => (
                Ipv4Addr::UNSPECIFIED,
                [8080, 53, 8090],
                "/var/run/proxy/api.sock",
            ),
            Self::Dev => (
                Ipv4Addr::LOCALHOST,
                [8080, 5353, 8090],
                "./.unified-proxy/api.sock",
            ),
        };
        let [proxy, dns, mcp] = ports.map(|port| vec![SocketAddr::new(IpAddr::V4(address), port)]);
        Listen {
            proxy,
            dns,
            mcp,
            admin: admin.into(),
        }
    }

    fn data_dir(self) -> PathBuf {
        match self {
            Self::Serve => "/var/lib/unified-proxy".into(),
            Self::Dev => "./.unified-proxy".into(),
        }
    }

    fn certs_dir(self) -> PathBuf {
        match self {
            Self::Serve => "/certs".into(),
            Self::Dev => "./.unified-proxy/certs".into(),
        }
    }
}

/// Reads every file of a directory, with the variables of this process. A file that is absent
/// means secure defaults; a directory that is absent, and a file that cannot be read, are errors.
pub fn load(dir: &Path, profile: Profile) -> Result<Config, ConfigErrors> {
    load_with(dir, profile, &|name| std::env::var(name).ok())
}

/// The same with variables from elsewhere.
pub fn load_with(dir: &Path, profile: Profile, env: Env<'_>) -> Result<Config, ConfigErrors> {
    let report = Report::default();
    check_directory(dir, &report)?;
    let files = open(dir, env, &report);
    // Not expanded: its variables belong to a part that does not run.
    let mcp = files::open(dir, "mcp.yaml", None, &report);
    mcp::check(&mcp);
    let documents = [
        &files.proxy,
        &files.allowlist,
        &files.policy,
        &files.credentials,
        &mcp,
    ];
    let names = FILES.into_iter().zip(documents);
    let names = names.filter(|(_, document)| !document.is_absent());
    let names = names.map(|(name, _)| name).collect();
    let proxy = proxy::read(&files.proxy, profile, env);
    let allowlist = allowlist::read(&files.allowlist);
    let policy = policy::read(&files.policy);
    let credentials = CredentialSettings::read(&files, &FilesOnDisk);
    files.refuse_unknown_keys();
    check_passthrough(&proxy, &policy, &credentials);
    credentials.warn(&files, &allowlist);
    Ok(Config {
        proxy: proxy.config,
        allowlist,
        policy,
        credentials,
        files: names,
        warnings: report.finish()?,
    })
}

fn open<'a>(dir: &Path, env: Env<'_>, report: &'a Report) -> Files<'a> {
    let open = |name| files::open(dir, name, Some(env), report);
    Files {
        proxy: open("proxy.yaml"),
        allowlist: open("allowlist.yaml"),
        policy: open("policy.yaml"),
        credentials: open("credentials.yaml"),
    }
}

/// The admin socket that `proxy.yaml` names. The other files are not read: the caller's shell may
/// lack the variables that they need.
pub fn admin_socket(dir: &Path, profile: Profile) -> Result<PathBuf, ConfigErrors> {
    let env = |name: &str| std::env::var(name).ok();
    let report = Report::default();
    check_directory(dir, &report)?;
    let document = files::open(dir, "proxy.yaml", Some(&env), &report);
    let proxy = proxy::read(&document, profile, &env);
    document.refuse_unknown_keys();
    let socket = proxy.config.listen.admin;
    report.finish()?;
    Ok(socket)
}

/// The directory must be one; a YAML file in it that nobody reads may be a misspelt one.
fn check_directory(dir: &Path, report: &Report) -> Result<(), ConfigErrors> {
    let entries = fs::read_dir(dir).map_err(|error| {
        ConfigErrors(vec![ConfigError {
            file: dir.display().to_string().into(),
            line: 0,
            column: 0,
            key: String::new(),
            message: format!("the configuration directory cannot be read: {error}"),
        }])
    })?;
    let mut strays: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".yaml") || name.ends_with(".yml"))
        .filter(|name| !FILES.contains(&name.as_str()))
        .collect();
    strays.sort();
    for name in strays {
        let files = FILES.join(", ");
        report.warn(format!("{name:?} is not read: the files are {files}"));
    }
    Ok(())
}

/// What is tunnelled unread can neither be held to git rules nor be given a credential.
fn check_passthrough(proxy: &Proxy<'_>, policy: &PolicyConfig, credentials: &CredentialSettings) {
    let git = policy.git.hosts.iter().flat_map(GitHost::all_hosts);
    let guarded: Vec<(&Host, String)> = git
        .map(|host| (host, "has git rules".to_owned()))
        .chain(
            credentials
                .hosts
                .iter()
                .map(|(host, name)| (host, format!("has the credential {name}"))),
        )
        .collect();
    for (pattern, at) in &proxy.passthrough {
        let mut map = EntryMap::default();
        map.insert(pattern.clone(), ());
        for (host, reason) in &guarded {
            if map.find(host).is_some() {
                at.refuse(format!("{host} {reason}: it cannot be tunnelled unread"));
            }
        }
        let unread = policy.rules.iter().filter(|rule| {
            let looks_inside = !rule.methods.is_empty() || !rule.paths.is_empty();
            let mut hosts = rule.hosts.iter();
            looks_inside
                && rule.effect != Effect::Allow
                && (rule.hosts.is_empty() || hosts.any(|(host, _)| overlap(&host, pattern)))
        });
        for rule in unread {
            let (name, origin) = (&rule.name, &rule.origin);
            at.refuse(format!(
                "rule {name} at {origin} judges requests there: they cannot be tunnelled unread"
            ));
        }
    }
}

/// Whether a host can match both.
fn overlap(one: &HostPattern, other: &HostPattern) -> bool {
    use HostPattern::{Below, Exactly};
    let is_below = |name: &str, base: &str| {
        let rest = name.strip_suffix(base);
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    match (one, other) {
        (Exactly(one), Exactly(other)) => one == other,
        (Exactly(host), Below(base)) | (Below(base), Exactly(host)) => {
            host.name().is_some_and(|name| is_below(name, base))
        }
        (Below(one), Below(other)) => one == other || is_below(one, other) || is_below(other, one),
    }
}
