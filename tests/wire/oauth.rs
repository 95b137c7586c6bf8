//! OAuth logins of command-line tools. The proxy refreshes and injects the tokens of a login;
//! sandboxes see only placeholders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, Reply, SANDBOX, Seen, Setup, eventually};

const API: &str = "chatgpt.com";
const LOGIN: &str = "auth.openai.com";
const ECHO: &str = "/echo/backend-api/codex/responses";
const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";

/// The requests that the test's token endpoint received, and how this endpoint and the API respond.
#[derive(Default)]
struct Endpoint {
    asked: Vec<Value>,
    /// Status and `error` of the endpoint's responses; `None` for responses with tokens.
    error: Option<(u16, &'static str)>,
    /// Delay of the endpoint's responses.
    slow: Duration,
    /// The token for which the API answers 401.
    rejected: Option<String>,
}

struct Fixture {
    endpoint: Arc<Mutex<Endpoint>>,
    origin: Origin,
    proxy: Proxy,
    file: PathBuf,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// A JWT that expires in `lasts` seconds; a negative number makes an expired one.
fn jwt(name: &str, lasts: i64) -> String {
    let claims = json!({ "sub": name, "exp": now().cast_signed() + lasts });
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("eyJhbGciOiJSUzI1NiJ9.{claims}.signature-{name}")
}

fn answer(endpoint: &Mutex<Endpoint>, seen: &Seen, body: &str) -> Option<(u16, Value)> {
    let rejected = endpoint.lock().rejected.clone();
    if let Some(token) = rejected
        && seen.header("authorization") == Some(&format!("Bearer {token}"))
    {
        return Some((401, json!({ "detail": "token expired" })));
    }
    if seen.authority != LOGIN || seen.target != "/oauth/token" {
        return None;
    }
    let (asked, error, slow) = {
        let mut endpoint = endpoint.lock();
        endpoint.asked.push(serde_json::from_str(body).unwrap());
        (endpoint.asked.len(), endpoint.error, endpoint.slow)
    };
    std::thread::sleep(slow);
    Some(match error {
        Some((status, error)) => (status, json!({ "error": error })),
        None => {
            let tokens = json!({
                "access_token": jwt(&format!("fresh-{asked}"), 3600),
                "refresh_token": format!("refresh-fresh-{asked}"),
                "id_token": jwt(&format!("id-{asked}"), 3600),
            });
            (200, tokens)
        }
    })
}

/// A Codex login whose access token is a JWT made with [`jwt`].
fn auth_json(name: &str, lasts: i64) -> Value {
    json!({
        "OPENAI_API_KEY": null,
        "tokens": {
            "id_token": jwt("id", 3600), "access_token": jwt(name, lasts),
            "refresh_token": format!("refresh-{name}"), "account_id": "acct-77",
            "unheard_of": { "kept": [1, 2] },
        },
        "last_refresh": "2024-01-01T00:00:00Z",
        "another_tool": "keeps this",
    })
}

fn start(lasts: i64) -> Fixture {
    start_with(lasts, Endpoint::default())
}

fn start_with(lasts: i64, endpoint: Endpoint) -> Fixture {
    let endpoint = Arc::new(Mutex::new(endpoint));
    let shared = Arc::clone(&endpoint);
    let origin = Origin::scripted(move |seen, body| answer(&shared, seen, body));
    let mut setup = Setup::new(&origin);
    setup.host(API, origin.https);
    setup.host(LOGIN, origin.https);
    setup.proxy["logging"]["level"] = json!("trace");
    let file = setup.dir().join("auth.json");
    fs::write(&file, auth_json("first", lasts).to_string()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    setup.credential(json!({
        "name": "codex", "hosts": [API],
        "oauth": { "provider": "codex", "token_file": file },
    }));
    let proxy = setup.start();
    Fixture {
        endpoint,
        origin,
        proxy,
        file,
    }
}

impl Fixture {
    fn ask(&self) -> Reply {
        let brought = [
            &format!("Authorization: Bearer {PLACEHOLDER}")[..],
            "ChatGPT-Account-Id: brought",
            "chatgpt_account_id: brought",
        ];
        self.proxy.https_get(API, ECHO, &brought)
    }

    /// The bearer token of the latest request at the API.
    fn sent(&self) -> String {
        let seen = self.origin.seen();
        let newest = seen.iter().rfind(|seen| seen.authority == API).unwrap();
        let sent = newest.header("authorization").unwrap();
        sent.strip_prefix("Bearer ").unwrap().to_owned()
    }

    fn eventually_sends(&self, end: &str) {
        eventually("the new token is sent", Duration::from_secs(10), || {
            assert_eq!(self.ask().status, 200);
            self.sent().ends_with(end)
        });
    }

    fn refreshes(&self) -> usize {
        self.endpoint.lock().asked.len()
    }

    /// The content of the token file.
    fn kept(&self) -> Value {
        serde_json::from_slice(&fs::read(&self.file).unwrap()).unwrap()
    }

    /// Whether the health check `oauth_logins_valid` passes.
    fn check(&self) -> bool {
        let health = self.proxy.health();
        assert_eq!(health.status, 200, "the check does not degrade health");
        let health: Value = serde_json::from_slice(&health.body).unwrap();
        health["checks"]["oauth_logins_valid"].as_bool().unwrap()
    }
}

#[test]
fn token_and_account_of_a_login_replace_those_that_the_tool_sends() {
    let fixture = start(3600);
    assert_eq!(fixture.ask().status, 200);
    let seen = fixture.origin.only();
    let token = format!("Bearer {}", jwt_of(&fixture));
    assert_eq!(seen.header("authorization"), Some(token.as_str()));
    assert_eq!(seen.header("chatgpt-account-id"), Some("acct-77"));
    assert!(!format!("{seen:?}").contains("brought"), "{seen:?}");
    assert_eq!(fixture.refreshes(), 0);
    assert!(fixture.check());
    fixture
        .proxy
        .audited(json!({ "host": API, "credential": "codex" }));
}

fn jwt_of(fixture: &Fixture) -> String {
    let kept = fixture.kept();
    kept["tokens"]["access_token"].as_str().unwrap().to_owned()
}

#[test]
fn a_token_is_refreshed_before_it_expires_and_the_file_keeps_its_other_members() {
    let fixture = start(60);
    assert_eq!(fixture.ask().status, 200);
    fixture.eventually_sends("signature-fresh-1");
    let reply = fixture.ask();
    let asked = fixture.endpoint.lock().asked[0].clone();
    assert_eq!(asked["grant_type"], "refresh_token");
    assert_eq!(asked["refresh_token"], "refresh-first");
    assert!(asked["client_id"].is_string());

    let kept = fixture.kept();
    assert_eq!(kept["tokens"]["refresh_token"], "refresh-fresh-1");
    assert!(
        kept["tokens"]["id_token"]
            .as_str()
            .unwrap()
            .ends_with("id-1")
    );
    assert_eq!(kept["tokens"]["unheard_of"], json!({ "kept": [1, 2] }));
    assert_eq!(kept["tokens"]["account_id"], "acct-77");
    assert_eq!(kept["another_tool"], "keeps this");
    assert_eq!(kept["OPENAI_API_KEY"], Value::Null);
    assert_ne!(kept["last_refresh"], "2024-01-01T00:00:00Z");
    let mode = fs::metadata(&fixture.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);

    // The next refresh sends the new refresh token, and an echo of the new access token is
    // redacted.
    let mut expired = kept.clone();
    expired["tokens"]["access_token"] = jwt("again", -5).into();
    fs::write(&fixture.file, expired.to_string()).unwrap();
    eventually("the changed file is used", Duration::from_secs(10), || {
        fixture.ask();
        fixture.refreshes() == 2
    });
    let asked = fixture.endpoint.lock().asked[1].clone();
    assert_eq!(asked["refresh_token"], "refresh-fresh-1");
    assert!(reply.text().contains("[REDACTED:codex]"));
    assert!(!reply.text().contains("signature-fresh-1"));
}

#[test]
fn a_token_refresh_is_audited_as_a_system_flow_and_counted() {
    let fixture = start(-5);
    fixture.ask();
    let line = fixture
        .proxy
        .audited(json!({ "host": LOGIN, "path": "/oauth/token", "status": 200 }));
    assert_eq!(line["rule"], "system: oauth");
    assert_eq!(line["container_id"], Value::Null);
    let refreshed = ["codex", "\"ok\""];
    let metric = "proxy_oauth_refreshes_total";
    assert_eq!(fixture.proxy.metric(metric, &refreshed), 1.0);
}

#[test]
fn concurrent_flows_share_one_token_refresh() {
    let slow = Endpoint {
        slow: Duration::from_millis(700),
        ..Endpoint::default()
    };
    let fixture = start_with(-5, slow);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| fixture.ask().status))
            .collect();
        for asked in asking {
            assert_eq!(asked.join().unwrap(), 200);
        }
    });
    assert_eq!(fixture.refreshes(), 1);
}

#[test]
fn a_valid_token_is_injected_while_the_next_one_is_requested() {
    let slow = Endpoint {
        slow: Duration::from_secs(2),
        ..Endpoint::default()
    };
    let fixture = start_with(60, slow);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fixture.ask().status, 200));
        }
    });
    let seen = fixture.origin.seen();
    let mut of_api = seen.iter().filter(|seen| seen.authority == API);
    let is_first = |seen: &Seen| {
        seen.header("authorization")
            .unwrap()
            .ends_with("signature-first")
    };
    assert!(of_api.all(is_first), "no request waited for the refresh");
    fixture.eventually_sends("signature-fresh-1");
    assert_eq!(fixture.refreshes(), 1);
}

#[test]
fn after_a_401_the_next_request_has_another_token() {
    let fixture = start(3600);
    fixture.endpoint.lock().rejected = Some(jwt_of(&fixture));
    assert_eq!(fixture.ask().status, 401);
    assert_eq!(fixture.ask().status, 200);
    assert!(fixture.sent().ends_with("signature-fresh-1"));
    // The proxy does not refresh again for each request if the API refuses new tokens too.
    fixture.endpoint.lock().rejected = Some(fixture.sent());
    for _ in 0..3 {
        assert_eq!(fixture.ask().status, 401);
    }
    assert_eq!(fixture.refreshes(), 1);
}

#[test]
fn a_refused_login_is_not_refreshed_again_until_its_file_changes() {
    let refused = Endpoint {
        error: Some((400, "invalid_grant")),
        ..Endpoint::default()
    };
    let fixture = start_with(-5, refused);
    let denied = || {
        let reply = fixture.ask();
        reply.assert_denied(
            502,
            "credential_unavailable",
            "Credential unavailable: codex",
        );
        assert!(!reply.text().contains("refresh-first"));
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(denied);
        }
    });
    denied();
    assert_eq!(fixture.refreshes(), 1);
    assert!(!fixture.check());
    let metric = "proxy_oauth_refreshes_total";
    assert_eq!(fixture.proxy.metric(metric, &["\"refused\""]), 1.0);

    fs::write(&fixture.file, auth_json("anew", 3600).to_string()).unwrap();
    eventually("the new login is used", Duration::from_secs(10), || {
        fixture.ask().status == 200
    });
    assert!(fixture.sent().ends_with("signature-anew"));
    assert!(fixture.check());
}

#[test]
fn a_failing_token_endpoint_is_retried_after_a_delay_and_a_valid_token_is_still_injected() {
    let down = || Endpoint {
        error: Some((503, "down")),
        ..Endpoint::default()
    };
    let alive = start_with(60, down());
    for _ in 0..3 {
        assert_eq!(alive.ask().status, 200);
        assert!(alive.sent().ends_with("signature-first"));
        let failed = || !alive.check();
        eventually("the refresh has failed", Duration::from_secs(5), failed);
    }
    assert_eq!(alive.refreshes(), 1);

    let dead = start_with(-5, down());
    for _ in 0..3 {
        let reply = dead.ask();
        reply.assert_denied(
            502,
            "credential_unavailable",
            "Credential unavailable: codex",
        );
    }
    assert_eq!(dead.refreshes(), 1);
    dead.endpoint.lock().error = None;
    eventually("the refresh is retried", Duration::from_secs(15), || {
        dead.ask().status == 200
    });
    assert!(dead.check());
}

#[test]
fn requests_are_denied_while_the_token_file_is_missing() {
    let fixture = start(3600);
    let text = fs::read(&fixture.file).unwrap();
    fs::remove_file(&fixture.file).unwrap();
    eventually("requests are denied", Duration::from_secs(10), || {
        fixture.ask().status == 502
    });
    fixture.ask().assert_denied(
        502,
        "credential_unavailable",
        "Credential unavailable: codex",
    );
    assert!(!fixture.check());
    fs::write(&fixture.file, text).unwrap();
    eventually("the file is used again", Duration::from_secs(10), || {
        fixture.ask().status == 200
    });
}

/// A dry run looks at the token file, and neither refreshes the login nor counts as a request.
#[test]
fn explain_denies_while_the_token_file_is_missing_or_broken_and_refreshes_nothing() {
    let fixture = start(-5);
    let url = format!("https://{API}{ECHO}");
    let explain = || fixture.proxy.cli(&["explain", SANDBOX, "GET", &url]);
    let allowed = explain().ok();
    assert!(
        allowed.contains("credential codex would be added"),
        "{allowed}"
    );
    let text = fs::read(&fixture.file).unwrap();
    for broken in [None, Some("{}"), Some("not JSON")] {
        match broken {
            None => fs::remove_file(&fixture.file).unwrap(),
            Some(text) => fs::write(&fixture.file, text).unwrap(),
        }
        eventually("explain denies", Duration::from_secs(10), || {
            explain().code == Some(1)
        });
        let denied = explain().exits(1);
        for part in ["credential_unavailable", fixture.file.to_str().unwrap()] {
            assert!(denied.contains(part), "{broken:?}: {part}: {denied}");
        }
    }
    fs::write(&fixture.file, text).unwrap();
    eventually("explain allows", Duration::from_secs(10), || {
        explain().code == Some(0)
    });
    assert_eq!(fixture.refreshes(), 0);
}

#[test]
fn a_tools_refresh_request_gets_placeholders_only_at_the_exact_token_endpoint() {
    let fixture = start(3600);
    let post = |path: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {LOGIN}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        fixture.proxy.https(LOGIN, head)
    };
    let body = json!({ "grant_type": "refresh_token", "refresh_token": PLACEHOLDER });
    let reply = post("/oauth/token", &body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-proxy-denied"), None);
    let tokens: Value = serde_json::from_slice(&reply.body).unwrap();
    each_row(["access_token", "id_token", "refresh_token"], |key| {
        let token = tokens[key].as_str().unwrap();
        let mark = token.rsplit('.').next().unwrap();
        let digits = mark.strip_prefix("up-placeholder-").unwrap();
        assert!(digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    });
    let claims = tokens["id_token"].as_str().unwrap().split('.').nth(1);
    let claims = URL_SAFE_NO_PAD.decode(claims.unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    // The account id is not a secret; Codex compares it with the id in the host's responses.
    let claim = &claims["https://api.openai.com/auth"]["chatgpt_account_id"];
    assert_eq!(claim, "acct-77");
    fixture.origin.assert_untouched();
    assert_eq!(fixture.proxy.metric("proxy_denials_total", &[]), 0.0);
    let line = json!({ "host": LOGIN, "method": "POST", "status": 200, "outcome": "ok" });
    fixture.proxy.audited(line);

    each_row(
        [
            "/oauth/tokens",
            "/oauth/token/",
            "/oauth/token/x",
            "/oauth",
            "/OAuth/token",
            "/x/oauth/token",
            "/oauth/%74oken",
            "/x/../oauth/token",
        ],
        |path| {
            let reply = post(path, "{}");
            assert!(!reply.text().contains("up-placeholder-"), "{path}");
        },
    );
    let get = fixture.proxy.https_get(LOGIN, "/oauth/token", &[]);
    assert!(!get.text().contains("up-placeholder-"));
}

#[test]
fn no_token_appears_in_logs_metrics_audit_or_the_admin_api() {
    let fixture = start(60);
    let reply = fixture.ask();
    fixture.eventually_sends("signature-fresh-1");
    fixture.proxy.audited(json!({ "host": API }));
    let mut shown = fixture.proxy.log() + &reply.text();
    shown += &fs::read_to_string(fixture.proxy.path("data/audit.jsonl")).unwrap();
    for path in ["health", "metrics", "flows"] {
        let path = format!("/internal/{path}");
        shown += &fixture.proxy.admin("GET", &path, None).text();
    }
    each_row(["signature-", "refresh-first", "refresh-fresh"], |secret| {
        assert!(!shown.contains(secret), "{secret} is in the proxy's output");
    });
}
