//! `unified-proxy sandbox-files`, which writes the files with placeholders that a sandbox mounts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, Setup};

const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";
const ACCOUNT: &str = "acct-77f3";

fn start(origin: &Origin) -> Proxy {
    let mut setup = Setup::new(origin);
    let codex = json!({ "access_token": SECRET, "refresh_token": SECRET, "account_id": ACCOUNT });
    let opencode = json!({ "access": SECRET, "refresh": SECRET, "accountId": ACCOUNT });
    let claude = json!({ "accessToken": SECRET, "refreshToken": SECRET, "expiresAt": 0 });
    for (name, host, provider, file) in [
        ("codex", "chatgpt.com", "codex", json!({ "tokens": codex })),
        (
            "gemini-login",
            "cloudcode-pa.googleapis.com",
            "gemini",
            json!({ "access_token": SECRET }),
        ),
        (
            "opencode",
            "api.openai.com",
            "opencode",
            json!({ "openai": opencode }),
        ),
        (
            "claude-login",
            "api.anthropic.com",
            "claude",
            json!({ "claudeAiOauth": claude }),
        ),
    ] {
        let path = setup.dir().join(name);
        fs::write(&path, file.to_string()).unwrap();
        let oauth = json!({ "provider": provider, "token_file": path });
        setup.credential(json!({ "name": name, "hosts": [host], "oauth": oauth }));
    }
    let keys = json!({ "x-api-key": "${VENDOR_KEY:-}" });
    setup.credential(json!({ "name": "key", "hosts": ["api.anthropic.com"], "set_headers": keys }));
    setup.credential(
        json!({ "name": "unset", "hosts": ["api.tavily.com"], "bearer": "${UNSET_KEY:-}" }),
    );
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.start()
}

/// Runs `sandbox-files` with an empty environment, and returns its exit code and standard error.
fn run(proxy: &Proxy, dir: &Path, more: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .env_clear()
        .arg("sandbox-files")
        .arg(dir)
        .arg("--config")
        .arg(proxy.path("config"))
        .args(more)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), stderr)
}

const FILES: [&str; 5] = [
    "codex/auth.json",
    "gemini/oauth_creds.json",
    "opencode/auth.json",
    "claude/.credentials.json",
    "env",
];

#[test]
fn sandbox_files_have_the_format_of_each_tool_and_placeholders_for_all_secrets() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let dir = proxy.path("sandbox");
    let (exit, stderr) = run(&proxy, &dir, &[]);
    assert_eq!((exit, stderr.as_str()), (0, ""));
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let is_placeholder = |value: &Value| value.as_str().unwrap().contains("up-placeholder-");
    let codex = json("codex/auth.json");
    each_row(["id_token", "access_token", "refresh_token"], |key| {
        assert!(is_placeholder(&codex["tokens"][key]), "{key}");
    });
    assert!(codex["last_refresh"].is_string());
    let gemini = json("gemini/oauth_creds.json");
    assert!(is_placeholder(&gemini["access_token"]) && is_placeholder(&gemini["refresh_token"]));
    assert!(gemini["expiry_date"].is_i64());
    let opencode = json("opencode/auth.json");
    assert_eq!(opencode["openai"]["type"], "oauth");
    assert!(
        is_placeholder(&opencode["openai"]["access"])
            && is_placeholder(&opencode["openai"]["refresh"])
    );
    let claude = json("claude/.credentials.json");
    let claude = &claude["claudeAiOauth"];
    assert!(is_placeholder(&claude["accessToken"]) && is_placeholder(&claude["refreshToken"]));
    each_row(FILES, |name| {
        let mode = fs::metadata(dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644, "{name}");
        assert!(!read(name).contains(SECRET), "{name}");
    });
}

#[test]
fn sandbox_files_have_the_real_account_id_since_clients_compare_it_with_replies() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let dir = proxy.path("sandbox");
    assert_eq!(run(&proxy, &dir, &[]).0, 0);
    let json =
        |name: &str| serde_json::from_slice::<Value>(&fs::read(dir.join(name)).unwrap()).unwrap();
    let tokens = &json("codex/auth.json")["tokens"];
    assert_eq!(tokens["account_id"], ACCOUNT);
    each_row(["id_token", "access_token"], |key| {
        let claims = tokens[key].as_str().unwrap().split('.').nth(1).unwrap();
        let claims: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let account = &claims["https://api.openai.com/auth"]["chatgpt_account_id"];
        assert_eq!(account, ACCOUNT, "{key}");
    });
    assert_eq!(json("opencode/auth.json")["openai"]["accountId"], ACCOUNT);
}

#[test]
fn the_env_file_has_placeholders_for_active_keys_and_the_proxy_variables() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let dir = proxy.path("sandbox");
    assert_eq!(run(&proxy, &dir, &[]).0, 0);
    let env = fs::read_to_string(dir.join("env")).unwrap();
    let value = |name: &str| {
        let mut values = env.lines().filter_map(|line| line.split_once('='));
        values
            .find(|(named, _)| *named == name)
            .map(|(_, value)| value)
    };
    let begins = |name, with| value(name).unwrap().starts_with(with);
    assert!(begins("ANTHROPIC_API_KEY", "sk-ant-up-placeholder-"));
    assert!(begins(
        "CLAUDE_CODE_OAUTH_TOKEN",
        "sk-ant-oat01-up-placeholder-"
    ));
    // Codex and OpenCode read their logins from files, and the entry `unset` is inactive, so `env`
    // has no variable for them.
    assert_eq!(value("OPENAI_API_KEY"), None);
    assert_eq!(value("TAVILY_API_KEY"), None);
    assert_eq!(value("HTTPS_PROXY"), Some(proxy.url().as_str()));
    let bundle = proxy.path("certs/ca-bundle.pem").display().to_string();
    assert_eq!(value("SSL_CERT_FILE"), Some(bundle.as_str()));

    let place = ["--proxy", "http://proxy:8080", "--certs", "/certs"];
    assert_eq!(run(&proxy, &dir, &place).0, 0);
    let env = fs::read_to_string(dir.join("env")).unwrap();
    assert!(env.contains("\nHTTPS_PROXY=http://proxy:8080\n"));
    assert!(env.contains("\nSSL_CERT_FILE=/certs/ca-bundle.pem\n"));
}

#[test]
fn the_command_overwrites_files_without_placeholders_only_with_force() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let dir = proxy.path("sandbox");
    assert_eq!(run(&proxy, &dir, &[]).0, 0);
    assert_eq!(
        run(&proxy, &dir, &[]).0,
        0,
        "sandbox-files replaces the files that it wrote"
    );
    let real = dir.join("gemini/oauth_creds.json");
    fs::write(&real, "{\"access_token\":\"ya29.real\"}").unwrap();
    fs::remove_file(dir.join("env")).unwrap();
    let (exit, stderr) = run(&proxy, &dir, &[]);
    assert_eq!(exit, 64, "{stderr}");
    assert!(stderr.contains("oauth_creds.json"), "{stderr}");
    assert!(fs::read_to_string(&real).unwrap().contains("ya29.real"));
    assert!(!dir.join("env").exists(), "all files are written or none");
    assert_eq!(run(&proxy, &dir, &["--force"]).0, 0);
    assert!(!fs::read_to_string(&real).unwrap().contains("ya29.real"));
}

#[test]
fn without_a_running_server_the_command_writes_nothing_and_says_why() {
    let origin = Origin::start();
    let setup = Setup::new(&origin);
    setup.write();
    let dir = setup.dir().join("sandbox");
    let output = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .arg("sandbox-files")
        .arg(&dir)
        .arg("--config")
        .arg(setup.dir().join("config"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("api.sock"), "{stderr}");
    assert!(stderr.contains("is unified-proxy running?"), "{stderr}");
    assert!(!dir.exists());
}

#[test]
fn without_active_entries_the_command_writes_only_variables_and_says_so() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let dir = proxy.path("sandbox");
    let (exit, stderr) = run(&proxy, &dir, &[]);
    assert_eq!(exit, 0, "{stderr}");
    assert!(stderr.contains("no entry of credentials.yaml is active"));
    let env = fs::read_to_string(dir.join("env")).unwrap();
    assert!(env.contains("HTTPS_PROXY=") && !env.contains("up-placeholder-"));
    assert_eq!(
        run(&proxy, &dir, &[]).0,
        0,
        "sandbox-files replaces the files that it wrote"
    );
}

#[test]
fn the_admin_api_lists_active_entries_without_secrets() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let answer = proxy.admin("GET", "/internal/sandbox", None);
    assert_eq!(answer.status, 200);
    assert!(!answer.text().contains(SECRET), "{}", answer.text());
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    let entries = answer["credentials"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| &entry["name"]).collect();
    assert_eq!(
        names,
        ["codex", "gemini-login", "opencode", "claude-login", "key"]
    );
    assert_eq!(entries[0]["account"], ACCOUNT);
    assert_eq!(entries[4]["headers"], json!(["x-api-key"]));
    assert_eq!(answer["proxy"], json!([proxy.address.to_string()]));
}
