//! The admin API over a real Unix socket: the bodies, statuses and errors on which clients rely.

mod approvals;

use std::fs;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::{
    Addon, BoxFuture, Client, Container, ContainerId, Containers, Endpoint, FlowStart, Host, Kind,
    Level, Outcome, Scheme, Subject,
};
use addons::observe::{Audit, AuditSettings};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{each_row, each_row_async};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use unified_proxy::admin::{
    self, ActiveCredential, AdminState, Check, ControlPlane, ExplainRequest, Explanation, Health,
    NamedTool, OperatorAct, OperatorRequest, SandboxSettings,
};
use unified_proxy::approvals::sqlite::SqliteApprovals;
use unified_proxy::approvals::{Learner, Ledger, LiveGrants};
use unified_proxy::config::AuditConfig;
use unified_proxy::mcp::policy::PolicyKeeper;
use unified_proxy::mcp::{AcceptError, Digests, Outcome as RpcOutcome, People, PolicyDesk};
use unified_proxy::registry::Registry;
use unified_proxy::registry::sqlite::{FILE_NAME, SqliteStore};
use unified_proxy::telemetry::{AuditLog, HealthFlag};

use crate::loopback::{config, upstream};
use crate::policy_changes::loaded;

/// Digest of the changed definition.
const DIGEST: &str = "0a1b";

/// An admin server on a Unix socket in a temporary directory.
struct Server {
    directory: TempDir,
    registry: Arc<Registry>,
    approvals: Arc<Ledger>,
    log: AuditLog,
    dns: Arc<AtomicBool>,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    /// Records the end of a flow to a host, as the chain does.
    fn end_flow(&self, host: &str) {
        let settings = AuditSettings {
            lines_per_minute_per_container: NonZeroU32::MAX,
            bytes_per_minute_per_container: NonZeroU32::MAX,
        };
        let audit =
            Audit::new(settings, self.log.flow_log(), &prometheus::Registry::new()).unwrap();
        let host = Host::parse(host).unwrap();
        let endpoint = Endpoint {
            scheme: Scheme::Https,
            host,
            port: 443,
        };
        let subject = Subject::Upstream(endpoint);
        let flow = FlowStart::new(Kind::Http, Client::default(), subject, None).begin();
        let outcome = Outcome {
            status: 200,
            denial: None,
            aborted: false,
            duration: Duration::ZERO,
        };
        audit.finished(&flow, &outcome);
    }
}

fn settings() -> SandboxSettings {
    SandboxSettings {
        proxy: vec!["127.0.0.1:8080".into()],
        mcp: vec!["127.0.0.1:8090".into()],
        certs_dir: "/certs".into(),
        credentials: vec![ActiveCredential {
            name: "codex".into(),
            kind: "oauth".into(),
            hosts: vec!["chatgpt.com:443".into()],
            headers: vec!["authorization".into()],
            provider: Some("codex".into()),
            entry: None,
            account: Some("acct-77".into()),
        }],
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(
            SqliteStore::new(directory.path().join(FILE_NAME)),
            directory.path(),
        );
        let approvals = ledger(directory.path());
        let dns = Arc::new(AtomicBool::new(true));
        let metrics = prometheus::Registry::new();
        let audit = AuditConfig {
            path: directory.path().join("audit.jsonl"),
            max_bytes: 1 << 20,
            keep: 1,
        };
        let log = AuditLog::start(audit, HealthFlag::default(), &metrics).unwrap();
        let requests = prometheus::IntCounter::new("proxy_requests_total", "Requests.").unwrap();
        requests.inc();
        metrics.register(Box::new(requests)).unwrap();
        let grants = LiveGrants::new(Arc::clone(&approvals), Arc::clone(&registry));
        let learner = Learner::new(Arc::clone(&approvals), grants, || None, || Ok(()));
        let mut config = config(upstream("127.0.0.1:9".parse().unwrap(), &[]));
        config.proxy.data_dir = directory.path().to_owned();
        let snapshot = loaded(&Arc::new(config));
        let current = move || Arc::clone(&snapshot);
        let policies = PolicyKeeper::new(Arc::clone(&approvals), current, || Ok(()));
        let desk = PolicyDesk::new(&policies, &approvals, CancellationToken::new());
        let state = AdminState {
            people: People::new(&desk),
            policies,
            learner,
            registry: Arc::clone(&registry),
            admin_uids: Vec::new(),
            metrics,
            flows: log.flow_log(),
            approvals: Arc::clone(&approvals),
            control: Arc::new(Control {
                registry: Arc::clone(&registry),
                dns: Arc::clone(&dns),
            }),
        };
        let shutdown = CancellationToken::new();
        let listener = admin::bind(&directory.path().join("api.sock"), 0o600).unwrap();
        let serving = tokio::spawn(admin::serve(listener, state, shutdown.clone()));
        Self {
            directory,
            registry,
            approvals,
            log,
            dns,
            shutdown,
            serving,
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Response<Incoming> {
        let socket = self.directory.path().join("api.sock");
        let stream = UnixStream::connect(socket).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri(path);
        let response = self
            .send(request.body(Full::new(body.into())).unwrap())
            .await;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
        Answer {
            status,
            headers,
            body,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    async fn register(&self, body: &Value) -> Answer {
        self.call("POST", CONTAINERS, body.to_string()).await
    }
}

/// Tools named `same` have not changed, tools named `none` are unknown.
struct Control {
    registry: Arc<Registry>,
    dns: Arc<AtomicBool>,
}

impl ControlPlane for Control {
    fn health(&self) -> Health {
        let check = |name, ok, critical| Check { name, ok, critical };
        Health(vec![
            check("proxy_listening", true, true),
            check("dns_listening", self.dns.load(Ordering::Relaxed), true),
            check("registry_accessible", self.registry.available(), true),
            check("audit_writable", false, false),
        ])
    }

    fn reload(&self) -> Result<(), Vec<String>> {
        Err(vec!["policy.yaml:3:1: bad".into()])
    }

    fn sandbox(&self) -> SandboxSettings {
        settings()
    }

    fn explain(&self, question: ExplainRequest) -> BoxFuture<'_, Result<Explanation, String>> {
        let explained = match question.container.as_str() {
            "c1" => Ok(Explanation {
                allowed: true,
                steps: Vec::new(),
            }),
            _ => Err("Container not found".into()),
        };
        Box::pin(async { explained })
    }

    fn mcp(&self, request: OperatorRequest) -> BoxFuture<'_, RpcOutcome> {
        let said = json!({
            "container": request.container.id.as_str(),
            "method": &*request.method,
            "params": request.params,
        });
        Box::pin(async move { Ok(to_raw_value(&said).unwrap()) })
    }

    fn lease_began(&self, _: &Arc<Container>) {}

    fn audit(&self, _: OperatorAct) {}

    fn definition(&self, NamedTool { server, tool }: NamedTool) -> Result<Digests, AcceptError> {
        let changed = match tool.as_str() {
            "none" => return Err(AcceptError::Unknown { server, tool }),
            "read/all" => Some(DIGEST.to_owned()),
            _ => None,
        };
        Ok(Digests {
            accepted: "old".to_owned(),
            changed,
        })
    }

    fn accept_definition(
        &self,
        NamedTool { server, tool }: NamedTool,
        digest: Option<String>,
    ) -> Result<String, AcceptError> {
        let digest = digest.unwrap_or_else(|| DIGEST.to_owned());
        match tool.as_str() {
            "read/all" if digest == DIGEST => Ok(digest),
            "read/all" => Err(AcceptError::Superseded {
                server,
                tool,
                digest: DIGEST.to_owned(),
            }),
            "same" => Err(AcceptError::Unchanged { server, tool }),
            _ => Err(AcceptError::Unknown { server, tool }),
        }
    }
}

const CONTAINERS: &str = "/internal/containers";

fn body() -> Value {
    json!({"container_ip": "10.0.0.5", "container_id": "c1", "repos": ["octo/cat"]})
}

#[tokio::test]
async fn a_container_is_registered_shown_and_unregistered() {
    let server = Server::start();
    let full = json!({
        "container_ip": "10.0.0.5",
        "container_id": "c1",
        "repos": ["octo/cat", {"name": "octo/dog", "max_receive_pack_bytes": 1024}],
        "auth_mode": "bot",
        "expires_at": "2100-01-01T00:00:00Z",
        "allowed_domains": ["*.example.com"],
    });
    let answer = server.register(&full).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(
        answer.body,
        json!({"status": "registered", "container_id": "c1"})
    );

    let mut shown = server.get("/internal/containers/c1").await;
    assert_eq!(shown.status, StatusCode::OK);
    let listed = server.get(CONTAINERS).await.body;
    assert_eq!(listed, json!({"containers": [shown.body]}));
    let created = shown
        .body
        .as_object_mut()
        .unwrap()
        .remove("created_at")
        .unwrap();
    assert!(created.as_str().unwrap().ends_with('Z'));
    let level = shown.body.as_object_mut().unwrap().remove("security_level");
    assert_eq!(level, Some(json!("Public")));
    assert_eq!(shown.body, full);

    let reset = server
        .call("POST", "/internal/containers/c1/reset", "")
        .await;
    assert_eq!(reset.body, json!({"status": "reset", "container_id": "c1"}));
    let gone = server.call("DELETE", "/internal/containers/c1", "").await;
    assert_eq!(gone.status, StatusCode::OK);
    assert_eq!(
        gone.body,
        json!({"status": "unregistered", "container_id": "c1"})
    );
    each_row_async(
        [
            ("GET", "/internal/containers/c1"),
            ("DELETE", "/internal/containers/c1"),
            ("POST", "/internal/containers/c1/reset"),
            ("GET", "/internal/containers/%ff"),
            ("GET", "/internal/containers/a%2fb"),
        ],
        async |(method, path)| {
            let answer = server.call(method, path, "").await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{method} {path}");
            assert_eq!(answer.body, json!({"error": "Container not found"}));
        },
    )
    .await;
}

#[tokio::test]
async fn an_unregistration_keeps_the_level_only_if_its_query_says_so() {
    let path = "/internal/containers/c1";
    each_row_async(
        [
            ("?keep_level=true", StatusCode::OK, "Secret"),
            ("?keep_level=false", StatusCode::OK, "Public"),
            ("", StatusCode::OK, "Public"),
            ("?keep_level=yes", StatusCode::BAD_REQUEST, "Secret"),
            ("?keep=true", StatusCode::BAD_REQUEST, "Secret"),
        ],
        async |(query, status, level)| {
            let server = Server::start();
            assert_eq!(server.register(&body()).await.status, StatusCode::CREATED);
            let id = ContainerId::parse("c1").unwrap();
            let container = server.registry.get(&id).unwrap().unwrap();
            container.raise_level(Level::Secret);
            let answer = server.call("DELETE", &format!("{path}{query}"), "").await;
            assert_eq!(answer.status, status, "{query}");
            assert_eq!(container.has_ended(), status == StatusCode::OK, "{query}");
            assert_eq!(server.register(&body()).await.status, StatusCode::CREATED);
            let shown = server.get(path).await.body;
            assert_eq!(shown["security_level"], level, "{query}");
        },
    )
    .await;
}

#[tokio::test]
async fn a_registration_returns_its_open_socket_and_fails_if_the_socket_cannot_be_opened() {
    let server = Server::start();
    let mut wanted = server.registry.subscribe_listeners();
    tokio::spawn(async move {
        for opens in [true, false] {
            wanted.changed().await.unwrap();
            let newest = wanted.borrow_and_update().values().last().cloned();
            newest.unwrap().opened.set(opens).unwrap();
        }
    });
    let body = json!({"listener": "unix", "container_id": "c1", "repos": []});
    let answer = server.register(&body).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    let socket = answer.body["socket"].as_str().unwrap();
    let directory = server.directory.path().to_str().unwrap();
    assert!(
        socket.starts_with(directory) && socket.ends_with(".sock"),
        "{socket}"
    );
    let shown = server.get("/internal/containers/c1").await.body;
    assert_eq!(shown["listener"], "unix");
    assert_eq!(shown.get("container_ip"), None);
    let body = json!({"listener": "unix", "container_id": "c2", "repos": []});
    let answer = server.register(&body).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_wrong_body_gets_400_and_the_reason() {
    let server = Server::start();
    let missing = server
        .call("POST", CONTAINERS, r#"{"container_id":"c1"}"#)
        .await;
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    let error = "Missing required fields: ['container_ip', 'repos']";
    assert_eq!(missing.body, json!({"error": error}));
    each_row_async([
        ("", "Invalid body"),
        ("[]", "JSON object"),
        ("{", "Invalid body"),
        ("\u{1}", "Invalid body"),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":[],"x":1}"#,
            "'x'",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","container_id":"c2","repos":[]}"#,
            "container_id",
        ),
        (
            r#"{"container_ip":"10.0.0","container_id":"c1","repos":[]}"#,
            "container_ip",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c 1","repos":[]}"#,
            "container_id",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":{}}"#,
            "repos",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":[],"auth_mode":"x"}"#,
            "auth_mode",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":[],"expires_at":"2020-01-01T00:00:00Z"}"#,
            "expires_at",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":[],"allowed_domains":["*"]}"#,
            "allowed_domains",
        ),
        (
            r#"{"container_ip":"10.0.0.5","container_id":"c1","repos":[],"listener":"unix"}"#,
            "listener",
        ),
    ], async |(body, reason)| {
        let answer = server.call("POST", CONTAINERS, body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        let error = answer.body["error"].as_str().unwrap();
        assert!(error.contains(reason), "{body}: {error}");
    }).await;
    assert_eq!(server.registry.count(), 0);
}

#[tokio::test]
async fn unknown_paths_and_methods_and_large_bodies_get_json_errors() {
    let server = Server::start();
    each_row_async(
        [
            ("GET", "/", 404),
            ("GET", "/internal", 404),
            ("PUT", CONTAINERS, 405),
            ("POST", "/internal/health", 405),
        ],
        async |(method, path, status)| {
            let answer = server.call(method, path, "").await;
            assert_eq!(answer.status.as_u16(), status, "{method} {path}");
            assert!(answer.body["error"].is_string(), "{method} {path}");
        },
    )
    .await;
    let large = server
        .call("POST", CONTAINERS, vec![b' '; 1024 * 1024 + 1])
        .await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(large.body["error"].as_str().unwrap().contains("1048576"));
}

#[tokio::test]
async fn the_eleventh_write_within_a_second_gets_429_and_reads_pass() {
    let server = Server::start();
    let mut statuses = Vec::new();
    for _ in 0..11 {
        let answer = server.call("DELETE", "/internal/containers/c1", "").await;
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(statuses, [[404; 10].as_slice(), &[429]].concat());
    let limited = server.register(&body()).await;
    assert_eq!(limited.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limited.body, json!({"error": "Rate limit exceeded"}));
    assert_eq!(limited.headers["retry-after"], "1");
    for _ in 0..20 {
        assert_eq!(server.get(CONTAINERS).await.status, StatusCode::OK);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.register(&body()).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn calls_get_503_and_health_is_degraded_while_the_registry_is_unreadable() {
    let server = Server::start();
    assert_eq!(server.register(&body()).await.status, StatusCode::CREATED);
    let file = server.directory.path().join(FILE_NAME);
    fs::write(&file, b"garbage".repeat(100)).unwrap();
    each_row_async(
        [
            ("POST", CONTAINERS, body().to_string()),
            ("GET", CONTAINERS, String::new()),
            ("GET", "/internal/containers/c1", String::new()),
            ("DELETE", "/internal/containers/c1", String::new()),
        ],
        async |(method, path, body)| {
            let answer = server.call(method, path, body).await;
            assert_eq!(
                answer.status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{method} {path}"
            );
            assert_eq!(answer.body, json!({"error": "Registry unavailable"}));
        },
    )
    .await;
    let health = server.get("/internal/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health.body["status"], "degraded");
    assert_eq!(health.body["checks"]["registry_accessible"], false);
}

#[tokio::test]
async fn only_critical_checks_degrade_health() {
    let server = Server::start();
    let health = server.get("/internal/health").await;
    assert_eq!(health.status, StatusCode::OK);
    let checks = json!({
        "proxy_listening": true,
        "dns_listening": true,
        "registry_accessible": true,
        "audit_writable": false,
    });
    assert_eq!(health.body, json!({"status": "healthy", "checks": checks}));
    server.dns.store(false, Ordering::Relaxed);
    let health = server.get("/internal/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn the_engines_answers_to_metrics_reload_and_explain_are_returned() {
    let server = Server::start();
    let metrics = server.get("/internal/metrics").await;
    assert!(
        metrics
            .body
            .as_str()
            .unwrap()
            .contains("proxy_requests_total 1")
    );
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );

    let reload = server.call("POST", "/internal/reload", "").await;
    assert_eq!(reload.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(reload.body["errors"], json!(["policy.yaml:3:1: bad"]));

    let ask = |container: &str| {
        let question =
            json!({"container": container, "method": "GET", "url": "https://x.example/"});
        server.call("POST", "/internal/explain", question.to_string())
    };
    assert_eq!(ask("c1").await.body, json!({"allowed": true, "steps": []}));
    let unknown = ask("c2").await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert_eq!(unknown.body, json!({"error": "Container not found"}));
    let wrong = server
        .call("POST", "/internal/explain", r#"{"container":"c1"}"#)
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.body["error"].as_str().unwrap().contains("method"));
}

#[tokio::test]
async fn an_mcp_request_is_sent_on_behalf_of_a_registered_container() {
    let server = Server::start();
    server.register(&body()).await;
    let path = "/internal/containers/c1/mcp";
    let request = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"x":1.0}}"#;
    let answer = server.call("POST", path, request).await;
    assert_eq!(answer.status, StatusCode::OK);
    let result = json!({"container": "c1", "method": "tools/call", "params": {"x": 1.0}});
    let expected = json!({"jsonrpc": "2.0", "id": "a", "result": result});
    assert_eq!(answer.body, expected);
    let unregistered = server
        .call("POST", "/internal/containers/c2/mcp", request)
        .await;
    assert_eq!(unregistered.status, StatusCode::NOT_FOUND);
    each_row_async(
        [
            "",
            "[]",
            r#"{"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#,
        ],
        async |body| {
            let answer = server.call("POST", path, body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
            let error = answer.body["error"].as_str().unwrap();
            assert!(error.starts_with("Invalid body: "), "{error}");
        },
    )
    .await;
}

#[tokio::test]
async fn accepting_a_tool_definition_succeeds_or_fails_with_a_reason() {
    let server = Server::start();
    let accept = async |path: &str, body: &str| {
        let path = format!("/internal/mcp/definitions/{path}/accept");
        server.call("POST", &path, body.to_owned()).await
    };
    let seen = json!({ "digest": DIGEST }).to_string();
    for body in ["", "{}", &seen] {
        let done = accept("files/read%2Fall", body).await;
        assert_eq!(done.status, StatusCode::OK, "{body}");
        let expected = json!({
            "status": "accepted", "server": "files", "tool": "read/all", "digest": DIGEST,
        });
        assert_eq!(done.body, expected, "{body}");
    }
    let refused = accept("files/read%2Fall", "{\"digests\": 1}").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    each_row_async(
        [
            (
                "files/read%2Fall",
                StatusCode::CONFLICT,
                "the definition of tool read/all of server files has changed again, its digest is now 0a1b",
            ),
            (
                "files/same",
                StatusCode::CONFLICT,
                "the definition of tool same of server files has not changed since it was accepted",
            ),
            (
                "files/none",
                StatusCode::NOT_FOUND,
                "server files never listed a tool none",
            ),
            ("files/%ff", StatusCode::NOT_FOUND, "Not found"),
        ],
        async |(path, status, error)| {
            let answer = accept(path, "{\"digest\": \"another\"}").await;
            assert_eq!(answer.status, status, "{path}");
            assert_eq!(answer.body["error"], error);
        },
    )
    .await;
    for _ in 0..10 {
        accept("files/same", "").await;
    }
    assert_eq!(
        accept("files/same", "").await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn the_digests_of_a_definition_are_shown() {
    let server = Server::start();
    let show = async |path: &str| {
        let path = format!("/internal/mcp/definitions/{path}");
        server.call("GET", &path, "").await
    };
    let changed = show("files/read%2Fall").await;
    let expected = json!({
        "server": "files", "tool": "read/all", "accepted": "old", "changed": DIGEST,
    });
    assert_eq!((changed.status, changed.body), (StatusCode::OK, expected));
    let expected = json!({ "server": "files", "tool": "same", "accepted": "old" });
    assert_eq!(show("files/same").await.body, expected);
    assert_eq!(show("files/none").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn flows_are_listed_newest_first_and_streamed_as_they_end() {
    let server = Server::start();
    server.end_flow("one.example.com");
    server.end_flow("two.example.com");
    let newest = server.get("/internal/flows").await.body;
    let flows = newest["flows"].as_array().unwrap().iter();
    let hosts: Vec<_> = flows.map(|flow| &flow["host"]).collect();
    assert_eq!(hosts, ["two.example.com", "one.example.com"]);

    let request = Request::builder()
        .uri("/internal/flows")
        .header("accept", "text/event-stream");
    let response = server.send(request.body(Full::default()).unwrap()).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    server.end_flow("three.example.com");
    let mut body = response.into_body();
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event = std::str::from_utf8(&frame).unwrap();
    let line = event.strip_prefix("data: ").unwrap().trim_end();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["host"], "three.example.com");

    // The shutdown does not wait for the open stream.
    server.shutdown.cancel();
    let stopped = tokio::time::timeout(Duration::from_secs(1), server.serving).await;
    stopped.expect("the server stops").unwrap();
}

#[tokio::test]
async fn the_openapi_document_and_the_api_have_the_same_calls() {
    let server = Server::start();
    let document = server.get("/internal/openapi.json").await.body;
    let mut calls = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let answer = server.call(&method, &path.replace("{id}", "c1"), "").await;
            assert_ne!(answer.status.as_u16(), 405, "{method} {path}");
            assert_ne!(answer.body["error"], "Not found", "{method} {path}");
            calls.push(format!("{method} {path}"));
        }
    }
    each_row(
        [
            "POST /internal/containers",
            "GET /internal/containers",
            "GET /internal/containers/{id}",
            "DELETE /internal/containers/{id}",
            "POST /internal/containers/{id}/reset",
            "POST /internal/containers/{id}/mcp",
            "GET /internal/mcp/definitions/{server}/{tool}",
            "POST /internal/mcp/definitions/{server}/{tool}/accept",
            "GET /internal/approvals",
            "GET /internal/approvals/{id}",
            "POST /internal/approvals/{id}/approve",
            "POST /internal/approvals/{id}/deny",
            "POST /internal/approvals/{id}/forget",
            "GET /internal/grants",
            "POST /internal/grants",
            "DELETE /internal/grants/{id}",
            "GET /internal/health",
            "GET /internal/metrics",
            "GET /internal/flows",
            "GET /internal/sandbox",
            "POST /internal/reload",
            "POST /internal/explain",
            "GET /internal/openapi.json",
        ],
        |call| {
            assert!(calls.iter().any(|named| named == call), "{call}");
        },
    );
    let required = &document["components"]["schemas"]["RegistrationBody"]["required"];
    assert_eq!(required, &json!(["container_id", "repos"]));
}

/// A ledger with its file in the directory.
fn ledger(directory: &std::path::Path) -> Arc<Ledger> {
    let store = SqliteApprovals::new(directory.join("approvals.db"));
    Ledger::open(store, Arc::new(time::OffsetDateTime::now_utc)).unwrap()
}
