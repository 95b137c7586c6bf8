//! Tokens of a GitHub App installation: one for each lease, limited to the lease's repositories.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::{Origin, Proxy, SANDBOX, Seen, Setup};

const API: &str = "api.github.com";
const GIT: &str = "github.com";
/// A path of the API that every container may read.
const READ: &str = "/rate_limit";
const REFS: &str = "/acme/web/info/refs?service=git-upload-pack";
const MINT: &str = "/app/installations/456/access_tokens";

#[derive(Default)]
struct GitHub {
    /// The body and the JWT of each request for a token.
    asked: Vec<(Value, String)>,
    /// Repositories in the responses with tokens; `None` for the requested ones.
    gives: Option<Vec<&'static str>>,
    /// Delay of the responses with tokens.
    slow: Duration,
}

struct Fixture {
    github: Arc<Mutex<GitHub>>,
    origin: Origin,
    proxy: Proxy,
    key: RsaKeyPair,
}

fn answer(github: &Mutex<GitHub>, seen: &Seen, body: &str) -> Option<(u16, Value)> {
    if seen.authority == API && seen.target == "/app/installations/456" {
        return Some((200, json!({ "account": { "login": "Acme" } })));
    }
    if seen.authority != API || seen.target != MINT {
        return Some((200, json!({})));
    }
    let mut github = github.lock();
    let body: Value = serde_json::from_str(body).unwrap();
    let jwt = seen.header("authorization").unwrap_or_default().to_owned();
    let named = body["repositories"].as_array().unwrap().iter();
    let named = named.map(|name| format!("acme/{}", name.as_str().unwrap()));
    let reached: Vec<String> = match &github.gives {
        Some(gives) => gives.iter().map(ToString::to_string).collect(),
        None => named.collect(),
    };
    let reached = reached.iter().map(|name| json!({ "full_name": name }));
    let answer = json!({
        "token": format!("ghs_token{}", github.asked.len() + 1),
        "expires_at": "2100-01-01T00:00:00Z",
        "repository_selection": "selected",
        "repositories": reached.collect::<Vec<_>>(),
    });
    github.asked.push((body, jwt));
    let slow = github.slow;
    drop(github);
    std::thread::sleep(slow);
    Some((201, answer))
}

fn start() -> Fixture {
    let github = Arc::new(Mutex::new(GitHub::default()));
    let shared = Arc::clone(&github);
    let origin = Origin::scripted(move |seen, body| answer(&shared, seen, body));
    let mut setup = Setup::new(&origin);
    setup.host(API, origin.https);
    setup.host(GIT, origin.https);
    let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = key.as_der().unwrap();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(der.as_ref())
    );
    let file = setup.dir().join("app.pem");
    std::fs::write(&file, pem).unwrap();
    setup.credential(json!({
        "name": "github-app", "hosts": [GIT, API],
        "github_app": {
            "app_id": "123", "installation_id": "456", "private_key": { "file": file },
            "permissions": { "contents": "write", "pull_requests": "write" },
        },
    }));
    let proxy = setup.start();
    Fixture {
        github,
        origin,
        proxy,
        key,
    }
}

impl Fixture {
    fn register(&self, repos: &[&str]) {
        self.proxy.register_as(
            json!({ "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": repos }),
        );
    }

    /// The `Authorization` of the latest request to `host` that was not for a token.
    fn sent(&self, host: &str) -> Option<String> {
        let seen = self.origin.seen();
        let of_host = |seen: &&Seen| seen.authority == host && seen.target != MINT;
        let newest = seen.iter().rfind(of_host)?;
        newest.header("authorization").map(str::to_owned)
    }

    fn names(&self, at: usize) -> Value {
        self.github.lock().asked[at].0["repositories"].clone()
    }
}

#[test]
fn each_lease_gets_a_token_for_its_own_repositories_and_the_listed_permissions() {
    let fixture = start();
    fixture.register(&["acme/web", "Acme/api"]);
    let target = "/repos/acme/web";
    assert_eq!(fixture.proxy.https_get(API, target, &[]).status, 200);
    assert_eq!(fixture.sent(API).unwrap(), "Bearer ghs_token1");
    fixture.proxy.https_get(GIT, REFS, &[]);
    let basic = STANDARD.encode("x-access-token:ghs_token1");
    assert_eq!(fixture.sent(GIT).unwrap(), format!("Basic {basic}"));
    assert_eq!(fixture.github.lock().asked.len(), 1, "the token is cached");
    assert_eq!(fixture.names(0), json!(["api", "web"]));
    let body = fixture.github.lock().asked[0].0.clone();
    let granted = json!({ "contents": "write", "pull_requests": "write" });
    assert_eq!(body["permissions"], granted);
    let line = json!({ "host": API, "path": MINT, "rule": "system: github_app" });
    fixture.proxy.audited(line);

    fixture.register(&["acme/other"]);
    fixture.proxy.https_get(API, READ, &[]);
    assert_eq!(fixture.sent(API).unwrap(), "Bearer ghs_token2");
    assert_eq!(fixture.names(1), json!(["other"]));
}

#[test]
fn the_apps_own_jwt_is_signed_short_lived_and_names_the_app() {
    let fixture = start();
    fixture.register(&["acme/web"]);
    fixture.proxy.https_get(API, READ, &[]);
    let jwt = fixture.github.lock().asked[0].1.clone();
    let jwt = jwt.strip_prefix("Bearer ").unwrap();
    let (input, signature) = jwt.rsplit_once('.').unwrap();
    let public = fixture.key.public_key().as_ref();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    public.verify(input.as_bytes(), &signature).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(input.split_once('.').unwrap().1);
    let claims: Value = serde_json::from_slice(&claims.unwrap()).unwrap();
    assert_eq!(claims["iss"], "123");
    let lasts = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert!(lasts <= 600, "{lasts}");
}

#[test]
fn a_token_for_more_repositories_than_the_containers_is_not_used() {
    let fixture = start();
    fixture.register(&["acme/web"]);
    fixture.github.lock().gives = Some(vec!["acme/web", "acme/secret"]);
    let reply = fixture.proxy.https_get(API, READ, &[]);
    reply.assert_denied(
        502,
        "credential_unavailable",
        "Credential unavailable: github-app",
    );
    assert!(!reply.text().contains("ghs_"));
    assert_eq!(fixture.sent(API), None);
}

#[test]
fn repositories_of_other_owners_are_left_out_of_the_token() {
    let fixture = start();
    // A token request names repositories without owners: `web` would select `acme/web`, since the
    // installation belongs to Acme.
    fixture.register(&["acme/api", "other/web"]);
    assert_eq!(fixture.proxy.https_get(API, READ, &[]).status, 200);
    assert_eq!(fixture.names(0), json!(["api"]));
}

#[test]
fn clients_that_disconnect_cause_no_further_token_requests() {
    let fixture = start();
    fixture.register(&["acme/web"]);
    fixture.github.lock().slow = Duration::from_secs(2);
    for _ in 0..4 {
        let mut client = fixture.proxy.tls(API);
        write!(client, "GET {READ} HTTP/1.1\r\nHost: {API}\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(fixture.proxy.https_get(API, READ, &[]).status, 200);
    assert_eq!(fixture.sent(API).unwrap(), "Bearer ghs_token1");
    assert_eq!(fixture.github.lock().asked.len(), 1);
}

#[test]
fn a_container_without_repositories_gets_no_token() {
    let fixture = start();
    let reply = fixture.proxy.https_get(API, READ, &["Authorization: mine"]);
    assert_eq!(reply.status, 200);
    assert_eq!(fixture.sent(API), None);
    assert_eq!(fixture.github.lock().asked.len(), 0);
}
