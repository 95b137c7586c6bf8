//! `sandbox-files DIR`: what a sandbox mounts in the place of its tools' credential files.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use addons::credentials::oauth::Provider;
use addons::credentials::{is_placeholder, placeholder};
use clap::Args;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::exit::{Failure, code, print};
use super::{ConfigDir, load};
use crate::config::{Config, CredentialConfig, CredentialKind};

/// Sandboxes run as users of their own, and nothing in these files is secret.
const MODE: u32 = 0o644;

/// The variables that tools look at, and the beginning that some of them check.
const VARIABLES: [(&str, &str, &str); 8] = [
    ("api.openai.com", "OPENAI_API_KEY", "sk-"),
    ("api.anthropic.com", "ANTHROPIC_API_KEY", "sk-ant-"),
    (
        "generativelanguage.googleapis.com",
        "GEMINI_API_KEY",
        "AIza",
    ),
    ("api.tavily.com", "TAVILY_API_KEY", "tvly-"),
    ("api.perplexity.ai", "PERPLEXITY_API_KEY", "pplx-"),
    ("api.semanticscholar.org", "SEMANTIC_SCHOLAR_API_KEY", ""),
    ("api.github.com", "GITHUB_TOKEN", "ghp_"),
    ("api.github.com", "GH_TOKEN", "ghp_"),
];

/// Where to write, and over what.
#[derive(Args, Debug)]
pub struct SandboxFiles {
    /// The directory to write to; it is made where it is not there
    dir: PathBuf,
    /// Replace files that this command did not write
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    config: ConfigDir,
}

impl SandboxFiles {
    /// Writes a file for each login, and one of variables for the keys. None is written where
    /// one of them would replace what is not ours.
    pub fn run(&self) -> Result<(), Failure> {
        let (_, config) = load(&self.config)?;
        let files = contents(&config);
        if files.is_empty() {
            print("no entry of credentials.yaml is active: nothing to write")?;
        }
        for path in files.keys() {
            let path = self.dir.join(path);
            let may_write = self.force || is_ours(&path).map_err(|e| failed(&path, &e))?;
            if !may_write {
                let why =
                    "is there and was not written by this command: move it away, or give --force";
                return Err(Failure::new(
                    code::USAGE,
                    format_args!("{} {why}", path.display()),
                ));
            }
        }
        for (path, text) in files {
            let path = self.dir.join(path);
            write(&path, &text).map_err(|error| failed(&path, &error))?;
            print(path.display())?;
        }
        Ok(())
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(code::SOFTWARE, format_args!("{}: {error}", path.display()))
}

/// The files by their path below the directory.
fn contents(config: &Config) -> BTreeMap<PathBuf, String> {
    let mut logins: BTreeMap<PathBuf, Map<String, Value>> = BTreeMap::new();
    let mut variables: BTreeMap<&str, String> = BTreeMap::new();
    for entry in &config.credentials {
        if let CredentialKind::Oauth(oauth) = &entry.kind {
            let Value::Object(fields) = oauth.login.placeholder_file(&entry.name) else {
                continue;
            };
            let file = logins
                .entry(path_of(oauth.login.provider, entry))
                .or_default();
            for (key, value) in fields {
                file.entry(key).or_insert(value);
            }
        } else {
            for (_, variable, beginning) in VARIABLES.iter().filter(|v| is_for(entry, v.0)) {
                let value = format!("{beginning}{}", placeholder(&entry.name));
                variables.entry(variable).or_insert(value);
            }
        }
    }
    let logins = logins.into_iter();
    let mut files: BTreeMap<_, _> = logins
        .map(|(path, fields)| (path, format!("{:#}\n", Value::Object(fields))))
        .collect();
    if !variables.is_empty() {
        let lines = variables.iter();
        let lines = lines.map(|(name, value)| format!("{name}={value}\n"));
        files.insert("env".into(), lines.collect());
    }
    files
}

fn is_for(entry: &CredentialConfig, host: &str) -> bool {
    let mut names = entry.hosts.iter().map(|(host, _)| host.name());
    names.any(|name| name == Some(host))
}

/// As the tool names its file.
fn path_of(provider: Provider, entry: &CredentialConfig) -> PathBuf {
    match provider {
        Provider::Codex => "codex/auth.json".into(),
        Provider::Gemini => "gemini/oauth_creds.json".into(),
        Provider::OpenCode => "opencode/auth.json".into(),
        Provider::Generic => format!("{}/token.json", entry.name).into(),
    }
}

/// Whether nothing is there, or a file with placeholders.
fn is_ours(path: &Path) -> io::Result<bool> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(is_placeholder(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file()
        .set_permissions(Permissions::from_mode(MODE))?;
    file.persist(path)?;
    Ok(())
}
