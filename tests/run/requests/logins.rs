//! `--with-logins`: logins of the user, which the proxy injects and the sandbox never sees.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testkit::each_row;

use crate::attempts::{python, rows};
use crate::confinement::{MARK, SEARCH, mark};
use crate::fixture::Person;

const FAR: u64 = 4_102_444_800;
const ACCOUNT: &str = "acct-77f3";

fn jwt() -> String {
    let claims =
        json!({ "exp": FAR, "https://api.openai.com/auth": { "chatgpt_account_id": ACCOUNT } });
    format!(
        "eyJhbGciOiJSUzI1NiJ9.{}.{MARK}",
        URL_SAFE_NO_PAD.encode(claims.to_string())
    )
}

fn write(person: &Person, path: &str, login: &Value) {
    let path = person.write(path, login.to_string());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn claude(person: &Person) {
    let login = json!({ "claudeAiOauth": {
        "accessToken": format!("sk-ant-oat01-{MARK}"), "refreshToken": MARK, "expiresAt": FAR * 1000,
        "scopes": ["user:inference"],
    }});
    write(person, ".claude/.credentials.json", &login);
}

fn codex(person: &Person) {
    let login = json!({ "OPENAI_API_KEY": null, "tokens": {
        "id_token": jwt(), "access_token": jwt(), "refresh_token": MARK, "account_id": ACCOUNT,
    }, "last_refresh": "2026-01-01T00:00:00Z" });
    write(person, ".codex/auth.json", &login);
}

fn gemini(person: &Person) {
    let login = json!({
        "access_token": format!("ya29.{MARK}"), "refresh_token": MARK, "expiry_date": FAR * 1000,
        "token_type": "Bearer",
    });
    write(person, ".gemini/oauth_creds.json", &login);
}

fn opencode(person: &Person) {
    let login = json!({ "openai": {
        "type": "oauth", "access": jwt(), "refresh": MARK, "expires": FAR * 1000, "accountId": ACCOUNT,
    }});
    write(person, ".local/share/opencode/auth.json", &login);
}

/// Puts a script that prints a token like a logged-in `gh` into a directory of the user's PATH.
fn gh(person: &mut Person) {
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'auth token' ] && cat {}/token\n",
        person.home().join("keyring").display()
    );
    person.write("keyring/token", format!("gho_{MARK}\n"));
    let program = person.write("tools/gh", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let tools = program.parent().unwrap().display().to_string();
    person.env.push((
        "PATH".into(),
        format!("{tools}:/usr/local/bin:/usr/bin:/bin"),
    ));
}

/// A user with the origin as stand-in for every API.
fn person() -> Option<Person> {
    let mut person = Person::new()?;
    let https = person.origin.https;
    for host in [
        "api.anthropic.com",
        "api.openai.com",
        "chatgpt.com",
        "cloudcode-pa.googleapis.com",
        "github.com",
        "api.github.com",
        "generativelanguage.googleapis.com",
    ] {
        person.setup.host(host, https);
    }
    Some(person)
}

/// Searches for the secret as [`SEARCH`] does, then requests `/echo` from each host with a
/// placeholder as bearer token. Returns standard error.
fn ask(person: &Person, flags: &[&str], hosts: &[&str]) -> String {
    ask_with(
        person,
        flags,
        hosts,
        "authorization: Bearer up-placeholder-0123456789abcdef0123456789abcdef",
    )
}

/// Like [`ask`], with the header line `header` instead of `Authorization`.
fn ask_with(person: &Person, flags: &[&str], hosts: &[&str], header: &str) -> String {
    let urls: Vec<String> = hosts
        .iter()
        .map(|host| format!("https://{host}/echo"))
        .collect();
    let script = format!(
        "{SEARCH}\nfor url in sys.argv[3:]:\n    done = subprocess.run(['curl', '-sS', '-f', '-H', '{header}', url], capture_output=True)\n    holds(url, lambda: done.returncode == 0 and mark not in done.stdout or report(url, False, done))\n"
    );
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let command = python(&script, &[&mark()[..], &urls].concat());
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let ran = person.run(flags, &command);
    crate::attempts::check_rows(rows(&ran), hosts.len() + 2);
    ran.stderr
}

/// The value of a field in the first request that reached a host.
fn sent(person: &Person, host: &str, header: &str) -> String {
    let seen = person.origin.seen();
    let seen = seen
        .iter()
        .find(|seen| seen.authority == host)
        .unwrap_or_else(|| panic!("{host}: {seen:?}"));
    seen.header(header).unwrap_or_default().to_owned()
}

#[test]
fn logins_in_files_reach_their_hosts_and_not_the_sandbox() {
    let Some(mut person) = person() else { return };
    claude(&person);
    codex(&person);
    gemini(&person);
    person
        .env
        .push(("GEMINI_CLIENT_SECRET".into(), "of-the-client".into()));
    let hosts = [
        "api.anthropic.com",
        "chatgpt.com",
        "cloudcode-pa.googleapis.com",
    ];
    let said = ask(&person, &["--with-logins"], &hosts);
    for host in hosts {
        let sent = sent(&person, host, "authorization");
        assert!(
            sent.starts_with("Bearer ") && sent.contains(MARK),
            "{host}: {sent}"
        );
    }
    let first = said.lines().next().unwrap_or_default();
    for name in ["claude (", "codex (", "gemini (", "which it does not see"] {
        assert!(first.contains(name), "{said}");
    }
}

#[test]
fn opencodes_login_is_used_if_codex_has_none() {
    let Some(person) = person() else { return };
    opencode(&person);
    ask(&person, &["--with-logins"], &["chatgpt.com"]);
    assert!(sent(&person, "chatgpt.com", "authorization").contains(MARK));
}

#[test]
fn the_sandboxs_home_has_placeholders_in_the_formats_of_the_tools() {
    let Some(person) = person() else { return };
    claude(&person);
    codex(&person);
    gemini(&person);
    let script = "cat ~/.claude/.credentials.json ~/.codex/auth.json ~/.gemini/oauth_creds.json; ls -l ~/.claude.json";
    let said = person.sh(&["--with-logins", "--quiet"], script).ok();
    assert!(said.matches("up-placeholder-").count() >= 3, "{said}");
    assert!(said.contains(ACCOUNT) && !said.contains(MARK), "{said}");
}

#[test]
fn keys_of_the_environment_and_ghs_token_are_injected() {
    let Some(mut person) = person() else { return };
    gh(&mut person);
    for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"] {
        person.env.push((name.into(), format!("sk-{MARK}")));
    }
    let hosts = [
        "api.openai.com",
        "api.anthropic.com",
        "generativelanguage.googleapis.com",
    ];
    let said = ask(&person, &["--with-logins"], &hosts);
    assert!(sent(&person, "api.openai.com", "authorization").contains(MARK));
    assert!(sent(&person, "api.anthropic.com", "x-api-key").contains(MARK));
    assert!(
        sent(
            &person,
            "generativelanguage.googleapis.com",
            "x-goog-api-key"
        )
        .contains(MARK)
    );
    for name in ["$OPENAI_API_KEY", "$ANTHROPIC_API_KEY", "gh"] {
        assert!(said.contains(name), "{said}");
    }
    let ran = person.sh(&["--with-logins"], "curl -sSf https://api.github.com/zen");
    assert!(
        sent(&person, "api.github.com", "authorization").contains(MARK),
        "{ran:?}"
    );
}

#[test]
fn a_subscription_takes_precedence_over_a_key_for_the_same_host() {
    let Some(mut person) = person() else { return };
    claude(&person);
    person
        .env
        .push(("ANTHROPIC_API_KEY".into(), "sk-another-key".into()));
    let said = ask(&person, &["--with-logins"], &["api.anthropic.com"]);
    assert!(sent(&person, "api.anthropic.com", "authorization").contains(MARK));
    assert_eq!(sent(&person, "api.anthropic.com", "x-api-key"), "");
    let line = |with: &str| said.lines().find(|line| line.contains(with)).unwrap();
    let used = line("which it does not see");
    assert!(
        used.contains("claude (") && !used.contains("$ANTHROPIC_API_KEY"),
        "{said}"
    );
    line("$ANTHROPIC_API_KEY is not used: the login of claude");
}

/// The shipped `credentials.yaml`, which the Debian package installs, has an entry for the host of
/// Claude's login.
#[test]
fn an_inactive_entry_of_the_configuration_displaces_no_login() {
    let Some(mut person) = person() else { return };
    claude(&person);
    person.setup.credential(json!({
        "name": "anthropic",
        "hosts": ["api.anthropic.com"],
        "set_headers": { "x-api-key": "${ANTHROPIC_API_KEY:-}" },
        "remove_headers": ["authorization"],
    }));
    ask(&person, &["--with-logins"], &["api.anthropic.com"]);
    assert!(sent(&person, "api.anthropic.com", "authorization").contains(MARK));
}

#[test]
fn without_the_flag_no_login_is_used() {
    let Some(mut person) = person() else { return };
    claude(&person);
    person
        .env
        .push(("OPENAI_API_KEY".into(), format!("sk-{MARK}")));
    let said = ask_with(
        &person,
        &[],
        &["api.anthropic.com", "api.openai.com"],
        "accept: */*",
    );
    assert!(!said.contains("logins"), "{said}");
    let seen = format!("{:?}", person.origin.seen());
    assert!(!seen.contains(MARK), "{seen}");
}

#[test]
fn the_report_names_the_variable_of_a_placeholder_and_the_flag_that_injects_it() {
    let Some(mut person) = person() else { return };
    for name in ["ANTHROPIC_API_KEY", "MY_TOKEN"] {
        person.env.push((name.into(), format!("sk-{MARK}")));
    }
    let script = "curl -s -H \"x-api-key: $ANTHROPIC_API_KEY\" https://api.anthropic.com/echo; \
        curl -s -u \"me:$MY_TOKEN\" https://api.openai.com/echo; \
        curl -s \"https://chatgpt.com/echo?key=$ANTHROPIC_API_KEY\"; \
        dig +short unified-proxy; true";
    let ran = person.sh(&[], script);
    let line = |host: &str| {
        let mut lines = ran.stderr.lines();
        lines
            .find(|line| line.starts_with(&format!("  {host} ")))
            .unwrap_or_else(|| panic!("{ran:?}"))
    };
    each_row(
        [
            (
                "api.anthropic.com",
                "--with-logins   (the command has a placeholder for $ANTHROPIC_API_KEY)",
            ),
            (
                "api.openai.com",
                "credential_misuse   (a placeholder for $MY_TOKEN;",
            ),
            (
                "chatgpt.com",
                "credential_misuse   (a placeholder for $ANTHROPIC_API_KEY;",
            ),
            ("unified-proxy", "this is the sandbox itself"),
        ],
        |(host, says)| assert!(line(host).contains(says), "{}", line(host)),
    );
    assert!(!ran.stderr.contains("--allow"), "{}", ran.stderr);
    assert!(!format!("{:?}", person.origin.seen()).contains("up-placeholder"));
}

#[test]
fn with_logins_reports_that_no_login_was_found() {
    let Some(person) = person() else { return };
    let ran = person.sh(&["--with-logins"], "exit 9");
    assert_eq!(ran.code, Some(9));
    assert!(ran.stderr.contains("no login was found"), "{ran:?}");
}
