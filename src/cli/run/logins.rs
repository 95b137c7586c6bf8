//! `--with-logins`: turns the logins and keys of this user into credentials that the proxy injects.

use std::env;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::programs::output_of;

/// The shipped `credentials.yaml`, whose entries take keys from the environment.
const SHIPPED: &str = include_str!("../../../config/credentials.yaml");

/// A login that a command-line tool keeps in a file.
struct Login {
    provider: &'static str,
    /// The path below the home directory.
    file: &'static str,
    host: &'static str,
    /// Headers that the proxy removes, since a client could send its own key in them.
    remove: &'static [&'static str],
    /// Further fields of `oauth` in the entry of `credentials.yaml`.
    more: &'static [(&'static str, &'static str)],
}

const fn login(provider: &'static str, file: &'static str, host: &'static str) -> Login {
    Login {
        provider,
        file,
        host,
        remove: &[],
        more: &[],
    }
}

const LOGINS: [Login; 4] = [
    Login {
        remove: &["x-api-key"],
        ..login("claude", ".claude/.credentials.json", "api.anthropic.com")
    },
    login("codex", ".codex/auth.json", "chatgpt.com"),
    Login {
        more: &[("client_secret", "${GEMINI_CLIENT_SECRET:-}")],
        ..login(
            "gemini",
            ".gemini/oauth_creds.json",
            "cloudcode-pa.googleapis.com",
        )
    },
    Login {
        more: &[("entry", "openai")],
        ..login("opencode", ".local/share/opencode/auth.json", "chatgpt.com")
    },
];

/// The environment variable with a key for the same host as Claude's login.
const CLAUDE_KEY: &str = "ANTHROPIC_API_KEY";

/// The environment variables from which the shipped entries take keys, each with the domain of its
/// hosts.
const KEYS: [(&str, &str); 7] = [
    (CLAUDE_KEY, "anthropic.com"),
    ("GEMINI_API_KEY", "googleapis.com"),
    ("GITHUB_TOKEN", "github.com"),
    ("OPENAI_API_KEY", "openai.com"),
    ("PERPLEXITY_API_KEY", "perplexity.ai"),
    ("SEMANTIC_SCHOLAR_API_KEY", "semanticscholar.org"),
    ("TAVILY_API_KEY", "tavily.com"),
];

/// Whether the proxy, with `--with-logins`, would inject the secret of a variable into requests to a
/// host.
pub fn is_injected(variable: &str, host: &str) -> bool {
    let variable = match variable {
        "GH_TOKEN" => "GITHUB_TOKEN",
        variable => variable,
    };
    KEYS.iter().any(|(key, domain)| {
        let below = host.strip_suffix(domain);
        *key == variable && below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    })
}

/// The logins and keys that were found.
pub struct Logins {
    files: Vec<(&'static Login, PathBuf)>,
    keys: Vec<&'static str>,
    /// The token of `GH_TOKEN` or of gh, if there is one and `GITHUB_TOKEN` is not set.
    github_token: Option<String>,
    /// Messages for the user: why a login or key that was found is not used.
    pub left_out: Vec<String>,
}

/// The variable with Gemini's client secret, which Gemini's login file does not contain.
const GEMINI_SECRET: &str = "GEMINI_CLIENT_SECRET";

impl Logins {
    /// Finds the logins and keys of this user. `gh` is the path of that program, if there is one.
    pub fn find(home: Option<&Path>, gh: Option<&Path>) -> Self {
        let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let mut files: Vec<(&Login, PathBuf)> = Vec::new();
        let mut left_out = Vec::new();
        for login in &LOGINS {
            let path = home.map(|home| home.join(login.file));
            let Some(path) = path.filter(|path| path.is_file()) else {
                continue;
            };
            let name = login.provider;
            // Codex and OpenCode use the same host, which can have only one credential.
            let same_host = files.iter().find(|(used, _)| used.host == login.host);
            let why = if name == "gemini" && !is_set(&GEMINI_SECRET) {
                format!("set the variable {GEMINI_SECRET}")
            } else if let Some((Login { provider, host, .. }, _)) = same_host {
                format!("that of {provider} is for the same host, {host}")
            } else {
                files.push((login, path));
                continue;
            };
            left_out.push(format!("the login of {name} is not used: {why}"));
        }
        let keys = KEYS.into_iter().map(|(name, _)| name);
        let mut keys: Vec<&str> = keys.filter(|name| is_set(name)).collect();
        if let Some(login) = claude(&files)
            && let Some(at) = keys.iter().position(|key| *key == CLAUDE_KEY)
        {
            keys.remove(at);
            let Login { provider, host, .. } = login;
            left_out.push(format!(
                "${CLAUDE_KEY} is not used: the login of {provider} is for the same host, {host}"
            ));
        }
        let github_token = match keys.contains(&"GITHUB_TOKEN") {
            true => None,
            false => env::var("GH_TOKEN")
                .ok()
                .filter(|token| !token.is_empty())
                .or_else(|| gh_token(gh?)),
        };
        Self {
            files,
            keys,
            github_token,
            left_out,
        }
    }

    /// Describes the logins and keys that were found, for the user, without those left out.
    pub fn names(&self) -> Vec<String> {
        let files = self.files.iter();
        let files = files.map(|(login, path)| format!("{} ({})", login.provider, path.display()));
        let keys = self.keys.iter().map(|key| format!("${key}"));
        let gh = self.github_token.iter().map(|_| "gh".to_owned());
        files.chain(keys).chain(gh).collect()
    }

    /// Returns the text of a `credentials.yaml` with the shipped entries and the logins. It
    /// contains no secret, only paths and names of variables.
    pub fn credentials(&self) -> String {
        let mut text = SHIPPED.to_owned();
        for (login, path) in &self.files {
            let mut oauth = Map::new();
            oauth.insert("provider".into(), login.provider.into());
            oauth.insert("token_file".into(), path.to_string_lossy().into());
            let more = login.more.iter();
            oauth.extend(more.map(|(key, value)| ((*key).to_owned(), (*value).into())));
            let entry = json!({
                "name": format!("{}-login", login.provider),
                "hosts": [login.host],
                "oauth": oauth,
                "remove_headers": login.remove,
            });
            // JSON is valid YAML.
            text.push_str(&format!("  - {entry}\n"));
        }
        text
    }

    /// Returns the environment variables that the appliance gets in addition to the variables of
    /// this process.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let token = self.github_token.iter();
        let mut variables: Vec<_> = token.map(|token| ("GITHUB_TOKEN", token.clone())).collect();
        // Claude's login is preferred to the API key. Two active entries for one host would
        // conflict, so the variable of the key is set to an empty value, which makes the entry of
        // the key inactive.
        if claude(&self.files).is_some() {
            variables.push((CLAUDE_KEY, String::new()));
        }
        variables
    }
}

/// Claude's login, if it was found.
fn claude(files: &[(&'static Login, PathBuf)]) -> Option<&'static Login> {
    let mut logins = files.iter().map(|(login, _)| *login);
    logins.find(|login| login.provider == "claude")
}

/// Gets the token from gh, which may keep it in a keyring; `None` if gh has no token or fails.
fn gh_token(gh: &Path) -> Option<String> {
    let token = output_of(gh, &["auth", "token"])?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The shipped entries are the source of both lists.
    #[test]
    fn the_keys_and_their_domains_are_those_of_the_shipped_entries() {
        for (key, domain) in KEYS {
            let from_key = SHIPPED
                .split("  - ")
                .find(|entry| entry.contains(&format!("${{{key}")));
            let entry = from_key.unwrap_or_else(|| panic!("{key}"));
            assert!(entry.contains(domain), "{key}: {entry}");
            assert!(is_injected(key, &format!("api.{domain}")) && is_injected(key, domain));
            assert!(!is_injected(key, &format!("not{domain}")) && !is_injected(key, "example.com"));
        }
        assert!(is_injected("GH_TOKEN", "api.github.com"));
        assert!(!is_injected("OTHER_KEY", "api.github.com"));
    }

    #[test]
    fn a_login_for_the_host_of_another_login_is_left_out_with_the_reason() {
        let home = tempfile::tempdir().unwrap();
        for file in [".codex/auth.json", ".local/share/opencode/auth.json"] {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        let logins = Logins::find(Some(home.path()), None);
        let used = logins.files.iter().map(|(login, _)| login.provider);
        assert_eq!(used.collect::<Vec<_>>(), ["codex"]);
        assert_eq!(
            logins.left_out,
            ["the login of opencode is not used: that of codex is for the same host, chatgpt.com"]
        );
    }
}
