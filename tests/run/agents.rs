//! Coding agents in a sandbox of `run`: the agents see placeholders, and the stand-ins for their
//! APIs get the credential of the user who started `run`.

#[path = "../agents/packages.rs"]
mod packages;
#[path = "../agents/stand_ins.rs"]
mod stand_ins;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fixture::{Person, User, is_root};
use crate::support::{Origin, Ran, Seen};
use stand_ins::{ACCOUNT, HOSTS, REPLY};

const SECRET: &str = "real-4f9a1c7be02d58c36e";
const PLACEHOLDER: &str = "up-placeholder-";
/// A time in the year 2100, in seconds since the Unix epoch.
const FAR: u64 = 4_102_444_800;

/// An agent and the login of the user who starts it.
struct Agent {
    name: &'static str,
    command: &'static str,
    /// Name of the user's variable with an API key.
    key: Option<&'static str>,
    /// Path below the home directory and content of the user's login file.
    login: Option<(&'static str, Value)>,
}

/// The user who starts the runs: root if the tests run as root, since the agents' programs may then
/// be in a directory that only root can read.
fn user() -> User {
    match is_root() {
        true => User::Root,
        false => User::Unprivileged,
    }
}

/// Runs an agent with `--with-logins`; asserts that it prints the reply and that no secret leaked.
fn converses(agent: &Agent) {
    let Some(programs) = packages::programs(agent.name) else {
        return;
    };
    let bodies: Arc<Mutex<String>> = Arc::default();
    let kept = Arc::clone(&bodies);
    let origin = Origin::scripted(move |seen: &Seen, body| {
        *kept.lock() += body;
        Some(stand_ins::answer(seen, body))
    });
    let Some(mut person) = Person::with(user(), origin) else {
        return;
    };
    for host in HOSTS {
        let https = person.origin.https;
        person.setup.host(host, https);
    }
    if let Some(name) = agent.key {
        person.env.push((name.to_owned(), SECRET.to_owned()));
    }
    if let Some((path, login)) = &agent.login {
        person.write(path, login.to_string());
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    person.env.push(("PATH".to_owned(), path));
    person
        .env
        .push(("TERM".to_owned(), "xterm-256color".to_owned()));
    let packages = programs.parent().unwrap();
    let ran = person.sh(
        &["--with-logins", "--read", packages.to_str().unwrap()],
        &format!(
            "{} </dev/null; grep -rls {} ~ /tmp . && echo leaked",
            agent.command,
            cut(SECRET)
        ),
    );
    assert!(ran.stdout.contains(REPLY), "{}: {ran:?}", agent.name);
    assert_nothing_leaked(&ran, &person, &bodies.lock());
}

/// A grep pattern that matches the secret, but not the command line that contains the pattern.
fn cut(secret: &str) -> String {
    let (first, rest) = secret.split_at(1);
    format!("'[{first}]{rest}'")
}

/// Asserts that the API got the real secret and no placeholder, and that the sandbox did not get
/// the secret.
fn assert_nothing_leaked(ran: &Ran, person: &Person, bodies: &str) {
    let seen = format!("{:?}{bodies}", person.origin.seen());
    assert!(seen.contains(SECRET), "{seen}");
    if let Some(at) = seen.find(PLACEHOLDER) {
        let around = seen.get(at.saturating_sub(300)..(at + 100).min(seen.len()));
        panic!("a placeholder reached the API: {around:?}");
    }
    assert!(!ran.stdout.contains("leaked"), "{ran:?}");
    assert!(
        !ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET),
        "{ran:?}"
    );
}

#[test]
fn claude_code_converses_in_a_run_with_the_users_key() {
    converses(&Agent {
        name: "Claude Code in a sandbox, with an API key",
        command: "claude -p 'say pong'",
        key: Some("ANTHROPIC_API_KEY"),
        login: None,
    });
}

#[test]
fn claude_code_converses_in_a_run_with_the_users_subscription() {
    let login = json!({ "claudeAiOauth": {
        "accessToken": SECRET, "refreshToken": SECRET, "expiresAt": FAR * 1000,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "max",
    }});
    converses(&Agent {
        name: "Claude Code in a sandbox, with a subscription",
        command: "claude -p 'say pong'",
        key: None,
        login: Some((".claude/.credentials.json", login)),
    });
}

#[test]
fn codex_converses_in_a_run_with_the_users_login() {
    let claims = json!({
        "exp": FAR, "https://api.openai.com/auth": { "chatgpt_account_id": ACCOUNT },
    });
    let jwt = format!(
        "e30.{}.{SECRET}",
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    let login = json!({ "tokens": {
        "access_token": jwt, "refresh_token": SECRET, "id_token": jwt, "account_id": ACCOUNT,
    }});
    converses(&Agent {
        name: "Codex in a sandbox, with a ChatGPT login",
        command: "codex exec --skip-git-repo-check --sandbox read-only 'say pong'",
        key: None,
        login: Some((".codex/auth.json", login)),
    });
}

#[test]
fn gemini_converses_in_a_run_with_the_users_key() {
    converses(&Agent {
        name: "Gemini in a sandbox, with an API key",
        command: "gemini --skip-trust -m gemini-2.5-flash -p 'say pong'",
        key: Some("GEMINI_API_KEY"),
        login: None,
    });
}

#[test]
fn opencode_converses_in_a_run_with_the_users_key() {
    converses(&Agent {
        name: "OpenCode in a sandbox, with an API key",
        command: "opencode run -m openai/gpt-5 'say pong'",
        key: Some("OPENAI_API_KEY"),
        login: None,
    });
}
