//! The environment of the command: the variables of the proxy, and the caller's variables, in which
//! placeholders replace secrets. Variables that name sockets of the host are dropped.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use addons::credentials::{is_placeholder, placeholder};

use super::visible::OWN_PROGRAMS;

/// Words that mark a variable as secret. The words of a name are separated by `_`, `-` and `.`;
/// case and digits at the end of a word are ignored.
const SECRET_WORDS: [&str; 18] = [
    "auth",
    "bearer",
    "connection",
    "connstr",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "creds",
    "dsn",
    "jwt",
    "key",
    "keys",
    "license",
    "otp",
    "pass",
    "pat",
    "pwd",
];
/// Suffixes of words that mark a variable as secret: `GITHUB_TOKEN`, `dbpassword`, `CLIENTSECRETS`.
const SECRET_ENDS: [&str; 13] = [
    "accesskey",
    "aikey",
    "apikey",
    "password",
    "passwd",
    "passphrase",
    "privatekey",
    "secret",
    "secretkey",
    "secrets",
    "token",
    "tokens",
    "webhook",
];
/// Variables that are not secret, even if their name or value matches one of the lists.
const PLAIN: [&str; 3] = ["PWD", "OLDPWD", "XAUTHLOCALHOSTNAME"];
/// Prefixes of values that are secret under any name.
const SECRET_VALUES: [&str; 24] = [
    "-----BEGIN",
    "AIza",
    "AKIA",
    "ASIA",
    "Basic ",
    "Bearer ",
    "SG.",
    "dop_v1_",
    "eyJ",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "gsk_",
    "hf_",
    "npm_",
    "pypi-",
    "rk_live_",
    "sk-",
    "sk_",
    "xox",
];
/// Texts that precede a secret within a value.
const SECRET_PARTS: [&str; 5] = [
    "AccountKey=",
    "Password=",
    "SharedAccessKey=",
    "password=",
    "sig=",
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
    "ENV",
    "GNOME_KEYRING_CONTROL",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "KUBECONFIG",
    "LISTEN_FDS",
    "NOTIFY_SOCKET",
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
/// `UNIFIED_PROXY_` variables describe another proxy than the one of this run.
const DROPPED_PREFIXES: [&str; 2] = ["GIT_", "UNIFIED_PROXY_"];

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
/// - `HOME` and `TMPDIR`
/// - `proxy`
/// - `keys`: placeholders for credentials that the proxy injects
///
/// Appends [`OWN_PROGRAMS`] to `PATH` if `PATH` is not empty. Returns the variables sorted by name.
pub fn environment(
    home: &Path,
    proxy: Vec<(&str, String)>,
    keys: Vec<(String, String)>,
) -> Vec<(OsString, OsString)> {
    let mut variables: BTreeMap<OsString, OsString> = env::vars_os()
        .filter(|(name, _)| !is_dropped(&name.to_string_lossy()))
        .map(|(name, value)| {
            let (key, text) = (name.to_string_lossy(), value.to_string_lossy());
            let is_secret = is_secret(&key, &text) && !text.is_empty();
            let value = match is_secret && !is_placeholder(&text) {
                true => placeholder(&key).into(),
                false => value,
            };
            (name, value)
        })
        .collect();
    let own = [("HOME", home.as_os_str()), ("TMPDIR", "/tmp".as_ref())];
    variables.extend(own.map(|(name, value)| (name.into(), value.to_owned())));
    // At the end of `PATH`, so that the user's programs are found first.
    let path = variables.get_mut(OsStr::new("PATH"));
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        path.push(":");
        path.push(OWN_PROGRAMS);
    }
    for (name, value) in proxy {
        variables.insert(name.into(), value.into());
    }
    for (name, value) in keys {
        variables.insert(name.into(), value.into());
    }
    variables.into_iter().collect()
}

fn is_dropped(name: &str) -> bool {
    let mut prefixes = DROPPED_PREFIXES.iter();
    let has_prefix = prefixes.any(|prefix| name.starts_with(prefix));
    DROPPED.contains(&name) || (has_prefix && !KEPT.contains(&name))
}

/// Whether a variable looks like a secret, by its name or its value.
pub fn is_secret(name: &str, value: &str) -> bool {
    !PLAIN.contains(&name) && (has_secret_name(name) || has_secret_value(value))
}

fn has_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(['_', '-', '.']).any(|word| {
        // `SECRET1` counts as `SECRET`.
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
        SECRET_WORDS.contains(&word) || SECRET_ENDS.iter().any(|end| word.ends_with(end))
    })
}

fn has_secret_value(value: &str) -> bool {
    SECRET_VALUES.iter().any(|start| value.starts_with(start))
        || SECRET_PARTS.iter().any(|part| value.contains(part))
        || has_password(value)
}

/// Whether a value is a URL with a password, or with a user name only, which may be a token.
fn has_password(value: &str) -> bool {
    let authority = value.split_once("://").map(|(_, rest)| rest);
    let authority = authority.and_then(|rest| rest.split(['/', '?', '#']).next());
    let user = authority.and_then(|authority| authority.rsplit_once('@'));
    user.is_some_and(|(user, _)| {
        user.split_once(':')
            .is_none_or(|(_, password)| !password.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn names_and_values_of_secrets_are_recognised() {
        each_row(
            [
                ("GITHUB_TOKEN", "x"),
                ("ANTHROPIC_API_KEY", "x"),
                ("AWS_SECRET_ACCESS_KEY", "x"),
                ("AWS_SESSION_TOKEN", "x"),
                ("dbpassword", "x"),
                ("PGPASSWORD", "x"),
                ("MYSQL_PWD", "x"),
                ("SLACK_WEBHOOK", "x"),
                ("SENTRY_DSN", "x"),
                ("SECRET1", "x"),
                ("AWSSECRETKEY", "x"),
                ("MY_PRIVATEKEY", "x"),
                ("OPENAIKEY", "x"),
                ("NPM_OTP", "x"),
                ("AZURE_STORAGE_CONNECTION_STRING", "x"),
                ("SOMETHING", "sk_live_0123456789"),
                ("SOMETHING", "gsk_0123456789"),
                ("SAS_URL", "https://blob.example.com/a?sv=1&sig=0123"),
                ("SOMETHING", "ghp_0123456789"),
                ("SOMETHING", "sk-ant-api03-0123456789"),
                ("SOMETHING", "eyJhbGciOiJIUzI1NiJ9.e30.x"),
                ("SOMETHING", "-----BEGIN PRIVATE KEY-----"),
                ("DATABASE_URL", "postgres://user:secret@db.example.com/name"),
                ("REMOTE", "https://0123456789@git.example.com/a/b"),
            ],
            |(name, value)| assert!(is_secret(name, value), "{name}={value}"),
        );
    }

    #[test]
    fn other_names_and_values_are_not_taken_for_secrets() {
        each_row(
            [
                ("PWD", "/work"),
                ("PATH", "/usr/bin"),
                ("EDITOR", "vim"),
                ("MONKEY", "x"),
                ("KEYBOARD", "us"),
                ("AUTHOR", "Ada"),
                ("COMPASS", "x"),
                ("DATABASE_URL", "postgres://db.example.com/name"),
                ("HOMEPAGE", "https://example.com/@ada"),
            ],
            |(name, value)| assert!(!is_secret(name, value), "{name}={value}"),
        );
    }
}
