//! `sandbox-files DIR`: writes placeholder files, which a container mounts instead of its tools'
//! credential files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use addons::credentials::oauth::Provider;
use addons::credentials::{is_placeholder, placeholder};
use clap::Args;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::Server;
use super::env::ProxyLocation;
use super::exit::{Failure, print, warn};
use crate::admin::ActiveCredential;

/// The mode of the files: every user may read them, since containers run as other users and no file
/// holds a secret.
const MODE: u32 = 0o644;

/// The comment in `env`. A later run of the command recognizes `env` by this comment, even if the
/// file has no placeholder.
const MARK: &str = "# written by unified-proxy sandbox-files";

/// An environment variable in which tools expect a credential for a host.
struct Variable {
    host: &'static str,
    name: &'static str,
    /// The prefix of the placeholder, which some tools check.
    prefix: &'static str,
    /// The header in which the tool sends the credential. The variable is written only for a
    /// credential that sets this header; `None` permits any header.
    header: Option<&'static str>,
    /// Whether the variable is also written for a login from a token file.
    for_logins: bool,
}

const fn variable(host: &'static str, name: &'static str, prefix: &'static str) -> Variable {
    Variable {
        host,
        name,
        prefix,
        header: None,
        for_logins: false,
    }
}

const VARIABLES: [Variable; 9] = [
    variable("api.openai.com", "OPENAI_API_KEY", "sk-"),
    Variable {
        header: Some("x-api-key"),
        ..variable("api.anthropic.com", "ANTHROPIC_API_KEY", "sk-ant-")
    },
    // For a subscription: with this variable, Claude Code requests other features than with an API
    // key.
    Variable {
        header: Some("authorization"),
        for_logins: true,
        ..variable(
            "api.anthropic.com",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "sk-ant-oat01-",
        )
    },
    variable(
        "generativelanguage.googleapis.com",
        "GEMINI_API_KEY",
        "AIza",
    ),
    variable("api.tavily.com", "TAVILY_API_KEY", "tvly-"),
    variable("api.perplexity.ai", "PERPLEXITY_API_KEY", "pplx-"),
    variable("api.semanticscholar.org", "SEMANTIC_SCHOLAR_API_KEY", ""),
    variable("api.github.com", "GITHUB_TOKEN", "ghp_"),
    variable("api.github.com", "GH_TOKEN", "ghp_"),
];

/// The directory to write to, and the server with the credentials.
#[derive(Args, Debug)]
pub struct SandboxFiles {
    /// The directory to write to; created if it is missing
    dir: PathBuf,
    /// Replace files that this command did not write
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    location: ProxyLocation,
    #[command(flatten)]
    server: Server,
}

impl SandboxFiles {
    /// Writes the placeholder files of the logins that are active in the running server. Also
    /// writes the file `env`, with the variables that hold placeholders and those of the proxy.
    /// Without `--force`, writes nothing if it would replace a file that this command did not
    /// write.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let settings = self.server.client()?.sandbox().await?;
        let environment = self.location.variables(&settings)?;
        for why in settings.credentials.iter().filter_map(lacks_account) {
            warn(why);
        }
        if settings.credentials.is_empty() {
            warn(
                "no entry of credentials.yaml is active in the running server, so there are no \
                 placeholders to write; the server's log says which secret each entry lacks",
            );
        }
        let (mut files, keys) = placeholders(&settings.credentials);
        files.insert("env".into(), lines(keys, &environment));
        for relative in files.keys() {
            let path = self.dir.join(relative);
            refuse_links(&self.dir, relative).map_err(|e| failed(&path, &e))?;
            if !self.force && !is_ours(&path).map_err(|e| failed(&path, &e))? {
                return Err(Failure::usage(format_args!(
                    "{} exists and was not written by this command: move it away, or use --force",
                    path.display()
                )));
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

/// The warning for a login without an account, if the tool needs an account. For example, Codex
/// exits with `selected workspace missing` if the host does not list the account in the file.
fn lacks_account(entry: &ActiveCredential) -> Option<String> {
    let provider = Provider::named(entry.provider.as_deref()?)?;
    let needs_one = matches!(provider, Provider::Codex | Provider::OpenCode);
    (needs_one && entry.account.is_none()).then(|| {
        format!(
            "{}: the token file names no account or cannot be read, so the placeholder file gets \
             an invented account, which the tool may refuse; see the server's log, correct the \
             token file, and run this command again",
            entry.name
        )
    })
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::internal(format_args!("{}: {error}", path.display()))
}

/// Returns the placeholders for credentials: the files of logins, by relative path, and the
/// environment variables. If two credentials need the same variable or the same key of a file, that
/// variable or key gets the placeholder of the first credential.
pub(super) fn placeholders(
    credentials: &[ActiveCredential],
) -> (BTreeMap<PathBuf, String>, Vec<(String, String)>) {
    let mut logins: BTreeMap<PathBuf, Map<String, Value>> = BTreeMap::new();
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    for entry in credentials {
        if let Some((path, fields)) = login(entry) {
            let file = logins.entry(path).or_default();
            for (key, value) in fields {
                file.entry(key).or_insert(value);
            }
        }
        for variable in VARIABLES.iter().filter(|variable| variable.is_for(entry)) {
            let value = format!("{}{}", variable.prefix, placeholder(&entry.name));
            variables.entry(variable.name.to_owned()).or_insert(value);
        }
    }
    let logins = logins.into_iter();
    let files = logins.map(|(path, fields)| (path, format!("{:#}\n", Value::Object(fields))));
    (files.collect(), variables.into_iter().collect())
}

/// Formats variables for `docker run --env-file`, which supports neither quotes nor `export`.
fn lines(keys: Vec<(String, String)>, environment: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in keys {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    let _ = writeln!(text, "{MARK}: the proxy, and trust in its CA");
    for (name, value) in environment {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

/// Returns the relative path and the contents of a login's placeholder file; `None` if the
/// credential is not a login of a known provider.
fn login(entry: &ActiveCredential) -> Option<(PathBuf, Map<String, Value>)> {
    let provider = Provider::named(entry.provider.as_deref()?)?;
    let path = match provider {
        Provider::Codex => "codex/auth.json".into(),
        Provider::Gemini => "gemini/oauth_creds.json".into(),
        Provider::OpenCode => "opencode/auth.json".into(),
        Provider::Claude => "claude/.credentials.json".into(),
        Provider::Generic => format!("{}/token.json", entry.name).into(),
    };
    let key = entry.entry.as_deref().unwrap_or_default();
    match provider.placeholder_file(&entry.name, key, entry.account.as_deref()) {
        Value::Object(fields) => Some((path, fields)),
        _ => None,
    }
}

impl Variable {
    /// Whether the variable gets the placeholder of this credential.
    fn is_for(&self, entry: &ActiveCredential) -> bool {
        let is_here = |named: &String| {
            named
                .rsplit_once(':')
                .is_some_and(|(host, _)| host == self.host)
        };
        let sends = |header| entry.headers.iter().any(|name| name == header);
        entry.hosts.iter().any(is_here)
            && self.header.is_none_or(sends)
            && (self.for_logins || entry.provider.is_none())
    }
}

/// Refuses a relative path if a part of it is a link or a special file: a container that has the
/// directory mounted may have put a link into it.
fn refuse_links(dir: &Path, relative: &Path) -> io::Result<()> {
    let parts = relative.ancestors();
    for part in parts.filter(|part| !part.as_os_str().is_empty()) {
        match dir.join(part).symlink_metadata() {
            Ok(found) if found.is_dir() || found.is_file() => {}
            Ok(_) => {
                let what = "the path contains a link or a special file: remove it";
                return Err(io::Error::other(what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether this command may replace the file: it is missing, or was written by this command.
fn is_ours(path: &Path) -> io::Result<bool> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(is_placeholder(&text) || text.contains(MARK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes or replaces a file atomically. Creates its directory.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_the_directory_are_refused() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = Path::new("codex/auth.json");
        assert!(refuse_links(dir.path(), file).is_ok());
        let link = std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("codex"));
        link.unwrap();
        assert!(refuse_links(dir.path(), file).is_err());
        assert!(refuse_links(dir.path(), Path::new("env")).is_ok());
    }
}
