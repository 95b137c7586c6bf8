//! The environment of the command: the variables of the proxy, and the caller's variables, in which
//! placeholders replace secrets. Variables that name sockets of the host are dropped.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::Path;

use addons::credentials::{is_placeholder, placeholder};

use super::secrets::is_secret;
use super::visible::OWN_PROGRAMS;

/// The variable in which a shell finds the path of its start-up file, and programs the name of their
/// environment, such as `production`.
const ENV: &str = "ENV";
/// The variables with hosts that are reached without a proxy.
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// The variable with options for every JVM.
const JAVA: &str = "JAVA_TOOL_OPTIONS";
/// Options of the JVM with paths of the host, without which it does not start.
const JAVA_AGENTS: [&str; 2] = ["-agentpath:", "-javaagent:"];

/// The directory below the home directory in which the command may install programs. The user's own
/// directories for them are read-only.
const INSTALLED: &str = ".installed";
const NPM_PREFIX: &str = "npm_config_prefix";
/// Variables with the place at which a tool installs programs, each with the path below
/// [`INSTALLED`]: npm, Cargo, uv, pipx, Go.
const INSTALLERS: [(&str, &str); 7] = [
    (NPM_PREFIX, ""),
    ("CARGO_INSTALL_ROOT", ""),
    ("GOBIN", "bin"),
    ("PIPX_BIN_DIR", "bin"),
    ("PIPX_HOME", "pipx"),
    ("UV_TOOL_BIN_DIR", "bin"),
    ("UV_TOOL_DIR", "uv"),
];
/// Variables that are dropped: they name sockets and sessions of the host, or files that do not
/// exist in the sandbox.
const DROPPED: [&str; 21] = [
    "BASH_ENV",
    "CONTAINER_HOST",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DISPLAY",
    "DOCKER_HOST",
    "GNOME_KEYRING_CONTROL",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "KUBECONFIG",
    "LISTEN_FDS",
    "NOTIFY_SOCKET",
    // npm would read it besides the variable in lower case.
    "NPM_CONFIG_PREFIX",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "SSH_TTY",
    "TMUX",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];
/// Prefixes of the names of variables that are dropped. `GIT_` variables can name programs;
/// `UNIFIED_PROXY_` variables describe another proxy than the one of this run; those of direnv and
/// mise have the values of other variables, compressed.
const DROPPED_PREFIXES: [&str; 4] = ["DIRENV_", "GIT_", "UNIFIED_PROXY_", "__MISE_"];

/// Variables that are kept despite their prefix: the user's name and address for commits.
const KEPT: [&str; 4] = [
    "GIT_AUTHOR_EMAIL",
    "GIT_AUTHOR_NAME",
    "GIT_COMMITTER_EMAIL",
    "GIT_COMMITTER_NAME",
];

/// Builds the environment of the command from these variables. A later variable replaces an earlier
/// one of the same name.
///
/// - the variables of this process that are not dropped, with placeholders for secrets
/// - `HOME`, `TMPDIR` and those of [`INSTALLERS`]
/// - `proxy`, with what the caller's `NO_PROXY` and `JAVA_TOOL_OPTIONS` add to it
/// - `keys`: placeholders for credentials that the proxy injects
///
/// If `PATH` is not empty, the programs in [`INSTALLED`] come first and [`OWN_PROGRAMS`] last. Returns the variables sorted by name.
pub fn environment(
    home: &Path,
    proxy: Vec<(&str, String)>,
    keys: Vec<(String, String)>,
) -> Vec<(OsString, OsString)> {
    let mut variables: BTreeMap<OsString, OsString> = env::vars_os()
        .filter(|(name, value)| !is_dropped(&name.to_string_lossy(), &value.to_string_lossy()))
        .map(|(name, value)| {
            let masked = masked(&name.to_string_lossy(), &value.to_string_lossy());
            (name, masked.map_or(value, OsString::from))
        })
        .collect();
    let own = [("HOME", home.as_os_str()), ("TMPDIR", "/tmp".as_ref())];
    variables.extend(own.map(|(name, value)| (name.into(), value.to_owned())));
    let installed = home.join(INSTALLED);
    // nvm refuses to work while npm's variable is set.
    let has_nvm = variables.contains_key(OsStr::new("NVM_DIR"));
    let project = env::current_dir().ok();
    for (name, place) in INSTALLERS {
        let is_in_project = variables.get(OsStr::new(name)).is_some_and(|place| {
            project
                .as_ref()
                .is_some_and(|project| Path::new(place).starts_with(project))
        });
        if !(is_in_project || has_nvm && name == NPM_PREFIX) {
            variables.insert(name.into(), installed.join(place).into());
        }
    }
    let path = variables.get_mut(OsStr::new("PATH"));
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        let mut all = installed.join("bin").into_os_string();
        for part in [
            OsStr::new(":"),
            path,
            OsStr::new(":"),
            OWN_PROGRAMS.as_ref(),
        ] {
            all.push(part);
        }
        *path = all;
    }
    for (name, value) in proxy {
        let value = match name {
            _ if NO_PROXY.contains(&name) => with_loopback(value),
            JAVA => with_options(value),
            _ => value,
        };
        variables.insert(name.into(), value.into());
    }
    for (name, value) in keys {
        variables.insert(name.into(), value.into());
    }
    variables.into_iter().collect()
}

/// The placeholder for the value of a variable; `None` if the value is no secret.
fn masked(name: &str, value: &str) -> Option<String> {
    (is_secret(name, value) && !is_placeholder(value)).then(|| placeholder(name))
}

/// The variables of this process in whose place [`environment`] puts placeholders, by placeholder.
pub fn masked_variables() -> BTreeMap<String, String> {
    let variables = env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((masked(&name, &value.to_string_lossy())?, name))
    });
    variables.collect()
}

fn is_dropped(name: &str, value: &str) -> bool {
    let mut prefixes = DROPPED_PREFIXES.iter();
    let has_prefix = prefixes.any(|prefix| name.starts_with(prefix));
    let is_file = name == ENV && value.contains(['/', '~', '$']);
    is_file || DROPPED.contains(&name) || (has_prefix && !KEPT.contains(&name))
}

/// Adds the caller's hosts without a proxy, as far as they are on loopback. No others can be reached
/// without the proxy.
fn with_loopback(mut hosts: String) -> String {
    let of_caller = NO_PROXY.map(|name| env::var(name).unwrap_or_default());
    for entry in of_caller.iter().flat_map(|hosts| hosts.split([',', ' '])) {
        if is_loopback(entry) && hosts.split(',').all(|known| known != entry) {
            hosts.push(',');
            hosts.push_str(entry);
        }
    }
    hosts
}

/// Whether an entry of `NO_PROXY` has only names or addresses of loopback.
fn is_loopback(entry: &str) -> bool {
    // The port follows a name, an IPv4 address, or an IPv6 address in brackets.
    let host = match entry.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => entry,
    };
    let host = host.trim_start_matches('*').trim_matches(['[', ']']);
    let name = host.trim_start_matches('.').to_ascii_lowercase();
    let (address, length) = host.split_once('/').unwrap_or((host, "32"));
    let is_narrow = length.parse::<u8>().is_ok_and(|length| length >= 8);
    let is_address = address.parse::<IpAddr>().is_ok_and(|ip| match ip {
        IpAddr::V4(ip) => ip.is_loopback() && is_narrow,
        IpAddr::V6(ip) => ip.is_loopback() && !host.contains('/'),
    });
    is_address || name == "localhost" || name.ends_with(".localhost")
}

/// Puts the caller's options for the JVM before those of the proxy, which win. Leaves out options
/// that are secret, and agents, whose files the sandbox does not have.
fn with_options(options: String) -> String {
    let of_caller = env::var(JAVA).unwrap_or_default();
    let is_kept = |word: &&str| {
        !is_secret(JAVA, word) && !JAVA_AGENTS.iter().any(|agent| word.starts_with(agent))
    };
    let all: Vec<&str> = of_caller.split_ascii_whitespace().collect();
    let kept: Vec<&str> = all.iter().copied().filter(is_kept).collect();
    // An option with spaces in it could lose a part.
    let is_quoted = of_caller.contains(['"', '\'']);
    if kept.is_empty() || is_quoted && kept.len() < all.len() {
        return options;
    }
    format!("{} {options}", kept.join(" "))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn variables_that_have_the_values_of_others_or_name_programs_are_dropped() {
        each_row(
            [
                ("DIRENV_DIFF", "eJyrVg", true),
                ("__MISE_DIFF", "eAFrXw", true),
                ("GIT_SSH_COMMAND", "ssh", true),
                ("GIT_AUTHOR_NAME", "Ada", false),
                ("ENV", "production", false),
                ("ENV", "~/.shrc", true),
                ("LANG", "C.UTF-8", false),
            ],
            |(name, value, dropped)| assert_eq!(is_dropped(name, value), dropped, "{name}"),
        );
    }

    #[test]
    fn only_hosts_of_loopback_are_reached_without_the_proxy() {
        each_row(
            [
                ("localhost", true),
                ("localhost:8080", true),
                (".localhost", true),
                ("*.app.localhost", true),
                ("127.0.0.2", true),
                ("127.0.0.2:80", true),
                ("127.0.0.0/8", true),
                ("::1", true),
                ("[::1]:80", true),
                ("127.0.0.0/4", false),
                ("::1/0", false),
                ("*", false),
                ("", false),
                (".example.com", false),
                ("notlocalhost", false),
                ("10.0.0.0/8", false),
                ("192.0.2.1", false),
            ],
            |(entry, is)| assert_eq!(is_loopback(entry), is, "{entry}"),
        );
    }
}
