//! The placeholder files that a sandbox mounts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Origin, Setup};

const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";

fn setup(origin: &Origin) -> Setup {
    let mut setup = Setup::new(origin);
    for (name, host, provider) in [
        ("codex", "chatgpt.com", "codex"),
        ("gemini-login", "cloudcode-pa.googleapis.com", "gemini"),
        ("opencode", "api.openai.com", "opencode"),
    ] {
        let file = setup.dir().join(name);
        fs::write(&file, json!({ "access_token": SECRET }).to_string()).unwrap();
        let oauth = json!({ "provider": provider, "token_file": file });
        setup.credential(json!({ "name": name, "hosts": [host], "oauth": oauth }));
    }
    let keys = json!({ "x-api-key": SECRET });
    setup.credential(json!({ "name": "key", "hosts": ["api.anthropic.com"], "set_headers": keys }));
    setup.write();
    setup
}

fn run(setup: &Setup, dir: &Path, more: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .arg("sandbox-files")
        .arg(dir)
        .arg("--config")
        .arg(setup.dir().join("config"))
        .args(more)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), stderr)
}

#[test]
fn sandbox_files_have_the_tools_shapes_and_placeholders_alone() {
    let origin = Origin::start();
    let setup = setup(&origin);
    let dir = setup.dir().join("sandbox");
    assert_eq!(run(&setup, &dir, &[]).0, 0);
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let is_text = |value: &Value| value.as_str().unwrap().contains("up-placeholder-");
    let codex = json("codex/auth.json");
    for key in ["id_token", "access_token", "refresh_token", "account_id"] {
        assert!(is_text(&codex["tokens"][key]), "{key}");
    }
    assert!(codex["last_refresh"].is_string());
    let gemini = json("gemini/oauth_creds.json");
    assert!(is_text(&gemini["access_token"]) && is_text(&gemini["refresh_token"]));
    assert!(gemini["expiry_date"].is_i64());
    let opencode = json("opencode/auth.json");
    assert_eq!(opencode["openai"]["type"], "oauth");
    assert!(is_text(&opencode["openai"]["access"]) && is_text(&opencode["openai"]["refresh"]));
    assert!(read("env").starts_with("ANTHROPIC_API_KEY=sk-ant-up-placeholder-"));
    for name in [
        "codex/auth.json",
        "gemini/oauth_creds.json",
        "opencode/auth.json",
        "env",
    ] {
        let mode = fs::metadata(dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644, "{name}");
        assert!(!read(name).contains(SECRET), "{name}");
    }
}

#[test]
fn sandbox_files_replace_their_own_and_nobody_elses_unless_forced() {
    let origin = Origin::start();
    let setup = setup(&origin);
    let dir = setup.dir().join("sandbox");
    assert_eq!(run(&setup, &dir, &[]).0, 0);
    assert_eq!(run(&setup, &dir, &[]).0, 0, "its own files are replaced");
    let real = dir.join("gemini/oauth_creds.json");
    fs::write(&real, "{\"access_token\":\"ya29.real\"}").unwrap();
    fs::remove_file(dir.join("env")).unwrap();
    let (exit, stderr) = run(&setup, &dir, &[]);
    assert_eq!(exit, 64, "{stderr}");
    assert!(stderr.contains("oauth_creds.json"), "{stderr}");
    assert!(fs::read_to_string(&real).unwrap().contains("ya29.real"));
    assert!(!dir.join("env").exists(), "nothing is written halfway");
    assert_eq!(run(&setup, &dir, &["--force"]).0, 0);
    assert!(!fs::read_to_string(&real).unwrap().contains("ya29.real"));
}
