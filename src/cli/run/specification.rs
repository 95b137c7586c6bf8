//! Makes the specification of the sandbox from the command, the directories and the server's
//! settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::directories::RunDirectories;
use super::environment::environment;
use super::git_settings::git_settings;
use super::programs::{find_program, trusted_program};
use super::visible;
use crate::admin::SandboxSettings;
use crate::cli::exit::{Failure, code};
use crate::cli::sandbox_files;
use crate::sandbox::machine::{self, CERTIFICATES};
use crate::sandbox::{Command, Entry, GATEWAY_PORT, PROXY_PORT, Spec};
use crate::tls::variables;

/// The host name inside the sandbox.
pub const HOST_NAME: &str = "sandbox";
const IF_MISSING: &str = "not found inside the sandbox: a program outside the system's directories \
                          and PATH becomes visible with --read DIRECTORY";
/// For the placeholder file of each known tool, its path in the output of `sandbox-files`, and the
/// path below the home directory at which the tool looks for it.
const LOGIN_FILES: [(&str, &str); 4] = [
    ("claude/.credentials.json", ".claude/.credentials.json"),
    ("codex/auth.json", ".codex/auth.json"),
    ("gemini/oauth_creds.json", ".gemini/oauth_creds.json"),
    ("opencode/auth.json", ".local/share/opencode/auth.json"),
];
/// Settings of Claude Code that skip its first-run dialogue, which would ask for a login.
const CLAUDE_SETTINGS: (&str, &str) = (".claude.json", "{\"hasCompletedOnboarding\":true}\n");

/// Parts of the specification that are computed while the appliance starts.
#[derive(Default)]
pub struct Prepared {
    system: Vec<Entry>,
    git_settings: Option<String>,
}

impl Prepared {
    /// Finds the system's files and the user's git settings.
    pub fn look(directories: &RunDirectories) -> Self {
        let git = trusted_program("git", &directories.writable);
        Self {
            system: machine::system(),
            git_settings: git.as_deref().and_then(git_settings),
        }
    }
}

/// Makes the specification. The terminal is `None`: the caller sets it, depending on the streams.
/// Fails if the command is empty, the directory of certificates does not exist, or the sockets in
/// the visible files cannot be hidden.
pub fn specification(
    command: &[OsString],
    prepared: Prepared,
    directories: &RunDirectories,
    settings: &SandboxSettings,
    protected: Vec<Entry>,
) -> Result<Spec, Failure> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::usage("a command must follow --"))?;
    let found = find_program(program, &directories.directory);
    let certificates = fs::canonicalize(&settings.certs_dir).map_err(|error| {
        let message = format_args!(
            "the directory of the server's certificates, {}, cannot be found: {error}",
            settings.certs_dir
        );
        Failure::new(code::UNAVAILABLE, message)
    })?;
    let mut files = visible::entries(
        prepared.system,
        directories,
        &certificates,
        found.as_deref(),
    );
    let (mut home, keys) = placeholder_logins(settings);
    if let Some(text) = prepared.git_settings {
        home.insert(".gitconfig".into(), text);
    }
    files.extend(home.into_iter().map(|(path, text)| Entry::File {
        at: directories.home.join(path),
        text,
    }));
    let is_bound = |path: &Path| {
        let mut files = files.iter();
        files.any(|entry| matches!(entry, Entry::Bind { at, .. } if path.starts_with(at)))
    };
    let is_visible = |entry: &Entry| matches!(entry, Entry::File { at, .. } if is_bound(at));
    // A file is made only where the host's is not visible.
    let protected = protected.into_iter().filter(|entry| !is_visible(entry));
    let protected: Vec<_> = protected.collect();
    files.extend(protected);
    let sockets = machine::hidden_sockets(&files, &directories.writable);
    files.extend(sockets.map_err(Failure::usage)?);
    let proxy = variables(
        &format!("http://127.0.0.1:{PROXY_PORT}"),
        Path::new(CERTIFICATES),
        Some(&format!("http://127.0.0.1:{GATEWAY_PORT}/mcp")),
    );
    Ok(Spec {
        hostname: HOST_NAME.to_owned(),
        files,
        command: Command {
            program: program.clone(),
            arguments: arguments.to_vec(),
            environment: environment(&directories.home, proxy, keys),
            directory: directories.directory.clone(),
            if_missing: IF_MISSING.to_owned(),
        },
        terminal: None,
        unix_sockets: true,
        limits: None,
    })
}

/// Returns the placeholders for the credentials that the proxy injects, as files and as environment
/// variables. A file has a path below the home directory and a text. If one of the variables is for
/// Claude, [`CLAUDE_SETTINGS`] is one of the files.
fn placeholder_logins(
    settings: &SandboxSettings,
) -> (BTreeMap<PathBuf, String>, Vec<(String, String)>) {
    let (files, keys) = sandbox_files::placeholders(&settings.credentials);
    let mut home = BTreeMap::new();
    for (name, at) in LOGIN_FILES {
        if let Some(text) = files.get(Path::new(name)) {
            home.insert(PathBuf::from(at), text.clone());
        }
    }
    if keys
        .iter()
        .any(|(name, _)| name.contains("CLAUDE") || name.contains("ANTHROPIC"))
    {
        let (path, text) = CLAUDE_SETTINGS;
        home.insert(path.into(), text.to_owned());
    }
    (home, keys)
}
