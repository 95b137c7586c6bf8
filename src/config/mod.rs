//! Reads the YAML files of the configuration into one immutable value.
//!
//! `addons::contract::settings` parses the files; each addon reads its own settings from them.

mod files;
mod learned;
mod nameserver;
mod notify;
mod proxy;
mod state_file;
mod stored_policy;
mod types;

use std::fs;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::Settings;
pub use addons::contract::settings::{ConfigError, ConfigErrors};
use addons::contract::settings::{Document, Env, Files, Report};

pub use learned::{LearnedFile, MAX_LEARNED};
pub use nameserver::nameservers_of;
pub use notify::NotifyTarget;
pub use state_file::Prepared;
pub use stored_policy::{StoredPolicy, StoredPolicyFile};
pub use types::{
    ApprovalsConfig, AuditConfig, Config, DnsConfig, Limits, Listen, Logging, ProxyConfig,
    StaticAddress, TlsConfig, UpstreamConfig,
};

use crate::secret_files::FilesOnDisk;

/// The names of the files in a configuration directory.
pub const FILES: [&str; 5] = Files::NAMES;

/// The state directory of `dev`, in the working directory.
pub const DEV_STATE: &str = "./.unified-proxy";

/// Selects the defaults of keys that `proxy.yaml` omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For the appliance: listeners on every IPv4 interface, state in directories of the system.
    Serve,
    /// For a developer's machine: listeners on loopback, state below the working directory.
    Dev,
}

impl Profile {
    fn listen(self) -> Listen {
        let (address, dns_port, admin) = match self {
            Self::Serve => (Ipv4Addr::UNSPECIFIED, 53, "/var/run/proxy/api.sock"),
            Self::Dev => (Ipv4Addr::LOCALHOST, 5353, "./.unified-proxy/api.sock"),
        };
        let at = |port| vec![SocketAddr::new(address.into(), port)];
        Listen {
            proxy: at(8080),
            dns: at(dns_port),
            mcp: at(8090),
            admin: admin.into(),
        }
    }

    fn data_dir(self) -> PathBuf {
        match self {
            Self::Serve => "/var/lib/unified-proxy".into(),
            Self::Dev => DEV_STATE.into(),
        }
    }

    /// Whether log lines are JSON: always for the appliance, whose log a program reads; for a
    /// developer, unless standard error is a terminal.
    fn logs_json(self) -> bool {
        match self {
            Self::Serve => true,
            Self::Dev => !io::stderr().is_terminal(),
        }
    }

    fn certs_dir(self) -> PathBuf {
        match self {
            Self::Serve => "/certs".into(),
            Self::Dev => "./.unified-proxy/certs".into(),
        }
    }
}

/// Reads every configuration file of a directory, and expands variables with the environment of
/// this process. A missing file means secure defaults; a missing directory and a file that cannot
/// be read are errors. Returns all errors of all files at once.
pub fn load(dir: &Path, profile: Profile) -> Result<Config, ConfigErrors> {
    load_checked(dir, profile, |_, _| {})
}

/// Like [`load`]; `check` may report further errors of the addons' settings. It also gets the
/// settings of files with errors, without the entries that could not be read.
pub fn load_checked(
    dir: &Path,
    profile: Profile,
    check: impl FnOnce(&Settings, &Report),
) -> Result<Config, ConfigErrors> {
    load_with_state(dir, profile, |_| None, check)
}

/// Like [`load_checked`], for a server, which also reads `learned.yaml` in the data directory that
/// `state` returns, if there is one and `approvals.learned` is on.
pub fn load_with_state(
    dir: &Path,
    profile: Profile,
    state: impl FnOnce(&ProxyConfig) -> Option<PathBuf>,
    check: impl FnOnce(&Settings, &Report),
) -> Result<Config, ConfigErrors> {
    let env = |name: &str| std::env::var(name).ok();
    read(dir, profile, &env, state, check)
}

/// Like [`load`], but gets variables from `env`.
pub fn load_with(dir: &Path, profile: Profile, env: Env<'_>) -> Result<Config, ConfigErrors> {
    read(dir, profile, env, |_| None, |_, _| {})
}

fn read(
    dir: &Path,
    profile: Profile,
    env: Env<'_>,
    state: impl FnOnce(&ProxyConfig) -> Option<PathBuf>,
    check: impl FnOnce(&Settings, &Report),
) -> Result<Config, ConfigErrors> {
    let report = Report::default();
    check_directory(dir, &report)?;
    let files = Files::open(|name| files::open(dir, name, Some(env), &report));
    let names = FILES.into_iter().zip(files.all());
    let names = names.filter(|(_, document)| !document.is_absent());
    let names = names.map(|(name, _)| name).collect();
    let proxy = proxy::read(&files, profile, env);
    let addons = Settings::read(&files, &FilesOnDisk);
    addons.check(&files);
    files.refuse_unknown_keys();
    check(&addons, &report);
    let state = state(&proxy).filter(|_| proxy.approvals.learned);
    let learned = state.map(|state| learned::read(&state, &report));
    Ok(Config {
        proxy,
        learned: Arc::new(learned.into_iter().flatten().collect()),
        addons,
        files: names,
        warnings: report.finish()?,
    })
}

/// Reads the path of the admin socket from `proxy.yaml`. The other files are not read: the caller's
/// shell may lack the variables that they need.
pub fn admin_socket(dir: &Path, profile: Profile) -> Result<PathBuf, ConfigErrors> {
    let env = |name: &str| std::env::var(name).ok();
    let report = Report::default();
    check_directory(dir, &report)?;
    let files = Files::open(|name| match name {
        "proxy.yaml" => files::open(dir, name, Some(&env), &report),
        _ => Document::absent(name, &report),
    });
    let proxy = proxy::read(&files, profile, &env);
    // The addons' keys in `proxy.yaml` must be read too, since `refuse_unknown_keys` refuses every
    // key that was not read.
    Settings::read(&files, &FilesOnDisk);
    files.refuse_unknown_keys();
    drop(files);
    report.finish()?;
    Ok(proxy.listen.admin)
}

/// Checks that the directory can be read. Warns of YAML files that do not belong to the
/// configuration, since their names may be misspelt.
fn check_directory(dir: &Path, report: &Report) -> Result<(), ConfigErrors> {
    let entries = fs::read_dir(dir).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => {
                ". Name another directory with --config DIR, or create this one: with the files of the \
                 folder `config` in the source of unified-proxy, or empty, which denies every request"
            }
            _ => "",
        };
        ConfigErrors(vec![ConfigError {
            file: dir.display().to_string().into(),
            line: 0,
            column: 0,
            key: String::new(),
            message: format!("the configuration directory cannot be read: {error}{remedy}"),
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
        report.warn(format!(
            "{name:?} is not read: the names of the configuration files are {files}"
        ));
    }
    Ok(())
}
