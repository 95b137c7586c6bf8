//! The login of Claude Code with a subscription: its token file, its token endpoint, and two
//! proxies that share the file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, Seen, Setup, eventually};

const API: &str = "api.anthropic.com";
const LOGIN: &str = "platform.claude.com";
const TOKEN_PATH: &str = "/v1/oauth/token";
const FIRST: &str = "sk-ant-oat01-first-9c1f";
const FRESH: &str = "sk-ant-oat01-fresh-77aa";

fn millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// Starts an origin that is the API and the token endpoint, and adds the body of each token request
/// to `asked`.
fn origin(asked: &Arc<Mutex<Vec<Value>>>) -> Origin {
    let asked = Arc::clone(asked);
    Origin::scripted(move |seen: &Seen, body| {
        if seen.authority != LOGIN || seen.target != TOKEN_PATH {
            return None;
        }
        asked.lock().push(serde_json::from_str(body).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let answer = json!({
            "token_type": "Bearer", "access_token": FRESH,
            "refresh_token": "sk-ant-ort01-fresh", "expires_in": 28800,
            "scope": "user:inference user:profile",
        });
        Some((200, answer))
    })
}

fn write_login(file: &Path, expires_at: u64) {
    let login = json!({
        "claudeAiOauth": {
            "accessToken": FIRST, "refreshToken": "sk-ant-ort01-first",
            "expiresAt": expires_at, "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max", "unheard_of": [1, 2],
        },
        "organizationUuid": "kept",
    });
    fs::write(file, login.to_string()).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn start(origin: &Origin, file: &Path) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.host(API, origin.https);
    setup.host(LOGIN, origin.https);
    setup.credential(json!({
        "name": "claude", "hosts": [API], "remove_headers": ["x-api-key"],
        "oauth": { "provider": "claude", "token_file": file },
    }));
    setup.start()
}

fn ask(proxy: &Proxy) -> u16 {
    let brought = ["Authorization: Bearer brought", "X-Api-Key: brought"];
    proxy.https_get(API, "/echo/v1/messages", &brought).status
}

/// The `Authorization` of each request to the API, none of which may have an `x-api-key`.
fn sent(origin: &Origin) -> Vec<String> {
    let seen = origin.seen();
    let to_api = seen.iter().filter(|seen| seen.authority == API);
    to_api
        .map(|seen| {
            assert_eq!(seen.header("x-api-key"), None);
            seen.header("authorization").unwrap().to_owned()
        })
        .collect()
}

#[test]
fn a_subscriptions_token_is_injected_and_refreshed_and_the_file_keeps_its_other_members() {
    let asked = Arc::default();
    let origin = origin(&asked);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(".credentials.json");
    write_login(&file, millis() + 60_000);
    let proxy = start(&origin, &file);
    assert_eq!(ask(&proxy), 200);
    assert_eq!(sent(&origin), [format!("Bearer {FIRST}")]);
    eventually("the fresh token is sent", Duration::from_secs(10), || {
        ask(&proxy);
        sent(&origin).pop() == Some(format!("Bearer {FRESH}"))
    });
    assert_eq!(
        *asked.lock(),
        [json!({
            "client_id": "9d1c250a-e61b-44d9-88ed-5944d1962f5e",
            "grant_type": "refresh_token", "refresh_token": "sk-ant-ort01-first",
        })]
    );
    let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let login = &kept["claudeAiOauth"];
    assert_eq!(login["accessToken"], FRESH);
    assert_eq!(login["refreshToken"], "sk-ant-ort01-fresh");
    let lasts = login["expiresAt"].as_u64().unwrap() - millis();
    assert!((28_700_000..=28_800_000).contains(&lasts), "{lasts}");
    assert_eq!(login["subscriptionType"], "max");
    assert_eq!(login["unheard_of"], json!([1, 2]));
    assert_eq!(kept["organizationUuid"], "kept");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn two_processes_that_share_a_login_refresh_it_once() {
    let asked = Arc::default();
    let origin = origin(&asked);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(".credentials.json");
    write_login(&file, millis() - 1000);
    let proxies = [start(&origin, &file), start(&origin, &file)];
    std::thread::scope(|scope| {
        let asking = proxies.each_ref();
        let asking = asking.map(|proxy| scope.spawn(|| ask(proxy)));
        for asked in asking {
            assert_eq!(asked.join().unwrap(), 200);
        }
    });
    assert_eq!(asked.lock().len(), 1, "the refresh token works once");
    assert_eq!(
        sent(&origin),
        [format!("Bearer {FRESH}"), format!("Bearer {FRESH}")]
    );
}

#[test]
fn the_refresh_request_of_claude_code_gets_placeholders() {
    let asked = Arc::default();
    let origin = origin(&asked);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(".credentials.json");
    write_login(&file, millis() + 3_600_000);
    let proxy = start(&origin, &file);
    let body = json!({ "grant_type": "refresh_token" }).to_string();
    let length = body.len();
    let head = format!(
        "POST {TOKEN_PATH} HTTP/1.1\r\nHost: {LOGIN}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let reply = proxy.https(LOGIN, head);
    assert_eq!(reply.status, 200);
    let tokens: Value = serde_json::from_slice(&reply.body).unwrap();
    each_row(
        [
            ("access_token", "sk-ant-oat01-"),
            ("refresh_token", "sk-ant-ort01-"),
        ],
        |(key, prefix)| {
            let token = tokens[key].as_str().unwrap();
            assert!(
                token.starts_with(&format!("{prefix}up-placeholder-")),
                "{token}"
            );
        },
    );
    assert!(asked.lock().is_empty());
}
