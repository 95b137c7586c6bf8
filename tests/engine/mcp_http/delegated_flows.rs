//! Requests of the gateway to a mounted MCP server pass the chain as flows, and go only to that
//! server. The flows belong to the container, or to no container if the mount is shared.

use std::time::Duration;

use addons::contract::{Code, Host, Kind};
use serde_json::json;
use testkit::each_row_async;
use tokio::net::TcpListener;
use unified_proxy::mcp::{MountError, Version};

use super::server::*;
use super::*;

const LEGACY: Version = Version::V2025_11_25;

async fn echo() -> Server {
    Server::legacy(|seen| {
        let said = seen.header("x-injected").unwrap_or("nothing").to_owned();
        Scripted::result(&seen.message, json!({"said": said}))
    })
    .await
}

#[tokio::test]
async fn each_request_is_a_flow_of_the_container_under_the_mounts_name() {
    let server = echo().await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let result = fixture
        .result(&session, "tools/call", json!({"name": "a"}))
        .await;
    // The field that an addon added was sent, and the secret in the response was redacted.
    assert_eq!(
        server.of("tools/call")[0].header("x-injected"),
        Some("hunter2")
    );
    assert_eq!(result["said"], "*******");
    eventually("four flows have ended", || fixture.lines().len() == 4).await;
    drop(session);
    server.until("DELETE").await;
    eventually("five flows have ended", || fixture.lines().len() == 5).await;
    for line in fixture.lines() {
        assert_eq!(line.kind, Kind::Http);
        assert_eq!(line.principal, "mcp:kb", "{line:?}");
        assert_eq!(line.container.as_deref(), Some(CONTAINER));
        assert_eq!((line.path.as_str(), line.label), ("/mcp", "ok"), "{line:?}");
        assert!(line.status >= 200);
    }
    let methods: Vec<_> = fixture
        .lines()
        .into_iter()
        .map(|line| line.method)
        .collect();
    assert_eq!(methods.iter().filter(|method| *method == "POST").count(), 3);
}

#[tokio::test]
async fn requests_reuse_connections() {
    let server = Server::legacy(|seen| {
        Scripted::events(vec![event(
            &json!({"jsonrpc": "2.0", "id": seen.message["id"], "result": {}}),
        )])
    })
    .await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    for _ in 0..20 {
        fixture
            .result(&session, "tools/call", json!({"name": "a"}))
            .await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let connections = server.connections();
    assert!(connections <= 4, "{connections} connections");
}

#[tokio::test]
async fn flows_of_a_shared_mount_have_no_container() {
    let server = echo().await;
    let fixture = Fixture::at(&server.url());
    let (mut opening, _events) = fixture.opening(LEGACY);
    opening.container = None;
    let session = fixture
        .transport()
        .open(opening)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    fixture
        .result(&session, "tools/call", json!({"name": "a"}))
        .await;
    eventually("four flows have ended", || fixture.lines().len() == 4).await;
    fixture.container().end();
    assert!(!session.ended().is_cancelled());
    drop(session);
    server.until("DELETE").await;
    eventually("five flows have ended", || fixture.lines().len() == 5).await;
    for line in fixture.lines() {
        assert_eq!(
            (line.principal.as_str(), line.container),
            ("system mcp:kb", None)
        );
    }
}

#[tokio::test]
async fn the_end_of_a_lease_ends_its_calls_and_deletes_its_sessions_at_the_server() {
    let server = Server::legacy(|_| Scripted::events(vec![text(":\n\n"), Part::Hold])).await;
    let fixture = Fixture::at(&server.url());
    let (session, _events) = fixture.open(LEGACY).await;
    let calling = fixture.call(&session, "tools/call", json!({"name": "a"}));
    let ending = async {
        server.until("tools/call").await;
        fixture.container().end();
    };
    let ((outcome, _), ()) = tokio::join!(calling, ending);
    assert!(outcome.is_err());
    assert!(session.ended().is_cancelled());
    let farewell = server.until("DELETE").await;
    assert_eq!(farewell.header("mcp-session-id"), Some("s1"));
    eventually("the streams are closed", || server.open() == 0).await;
    assert!(matches!(
        fixture.cannot_open(LEGACY).await,
        MountError::Denied(_)
    ));
}

#[tokio::test]
async fn mounts_never_reach_the_proxys_own_listeners_or_metadata_services() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let own = format!("url: \"http://127.0.0.1:{port}/mcp\", timeout: 2s");
    let metadata = "url: \"http://169.254.169.254/mcp\", timeout: 2s".to_owned();
    each_row_async([own, metadata], async |settings| {
        let fixture = Fixture::with(&settings, port, |_| {});
        let MountError::Denied(denial) = fixture.cannot_open(LEGACY).await else {
            panic!("the error is not a denial");
        };
        assert_eq!(denial.code(), Code::AddressNotAllowed);
    })
    .await;
    let reached = tokio::time::timeout(Duration::from_millis(100), listener.accept());
    assert!(reached.await.is_err());
}

#[tokio::test]
async fn a_denial_of_the_chain_is_returned_and_an_unreachable_server_cannot_start() {
    let server = echo().await;
    let settings = format!("url: \"{}\", headers: {{ X-Denied: \"1\" }}", server.url());
    let MountError::Denied(denial) = Fixture::new(&settings).cannot_open(LEGACY).await else {
        panic!("the error is not a denial");
    };
    assert_eq!(denial.code(), Code::RuleDenied);
    assert!(server.seen().is_empty());
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    for version in [LEGACY, Version::V2026_07_28] {
        let fixture = Fixture::at(&format!("http://{closed}/mcp"));
        let error = fixture.cannot_open(version).await;
        assert!(matches!(error, MountError::CannotStart(_)), "{error:?}");
        assert_eq!(error.into_denial("kb").code(), Code::ToolUnavailable);
    }
}

#[tokio::test]
async fn secrets_of_the_settings_are_sent_in_clear_text_to_a_private_address() {
    let server = echo().await;
    let url = server.url();
    let fixture = Fixture::new(&format!(
        "url: \"{url}\", headers: {{ Authorization: Bearer s3cret }}"
    ));
    let (session, _events) = fixture.open(LEGACY).await;
    fixture
        .result(&session, "tools/call", json!({"name": "a"}))
        .await;
    let seen = server.of("tools/call");
    assert_eq!(seen[0].header("authorization"), Some("Bearer s3cret"));
}

#[tokio::test]
async fn header_fields_of_the_transport_cannot_be_configured() {
    each_row_async(
        ["Host", "Mcp-Session-Id", "Content-Length", "Accept"],
        async |name| {
            let settings =
                format!("url: \"http://127.0.0.1:9/mcp\", headers: {{ {name}: s3cret }}");
            let fixture = Fixture::new(&settings);
            let error = fixture.cannot_open(LEGACY).await.to_string();
            assert!(
                error.contains("the transport itself sets the field") && !error.contains("s3cret"),
                "{error}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_call_is_not_sent_on_a_connection_that_the_server_may_be_closing() {
    let script = |keep_alive: Option<&'static str>| {
        move |seen: &Seen| {
            let answer = match seen.method() {
                "server/discover" => {
                    let result = json!({"supportedVersions": ["2026-07-28"]});
                    Scripted::result(&seen.message, result)
                }
                _ => handshake(seen, "s1")
                    .unwrap_or_else(|| Scripted::result(&seen.message, json!({}))),
            };
            match keep_alive {
                Some(value) => answer.with("keep-alive", value),
                None => answer,
            }
        }
    };
    // The server's `Keep-Alive`, how long its connections may be idle, how long they are idle, and
    // whether the second call is sent on the connection of the first one.
    each_row_async(
        [
            (None, 1100, 1200, false),
            (Some("timeout=1"), 600, 700, false),
            (Some("max=100, Timeout=2"), 1100, 1200, false),
            (Some("timeout=0"), 50, 100, false),
            (Some("timeout=5"), 2600, 2700, false),
            (Some("timeout=20"), 20_000, 1500, true),
            (Some("timeout=soon"), 1100, 1200, false),
        ],
        async |(keep_alive, patience, idle, is_shared)| {
            for version in [LEGACY, Version::V2026_07_28] {
                let patience = Duration::from_millis(patience);
                let server = Server::with(None, Some(patience), script(keep_alive)).await;
                let fixture = Fixture::at(&server.url());
                let (session, _events) = fixture.open(version).await;
                fixture
                    .result(&session, "tools/call", json!({"name": "a"}))
                    .await;
                let before = server.connections();
                tokio::time::sleep(Duration::from_millis(idle)).await;
                fixture
                    .result(&session, "tools/call", json!({"name": "a"}))
                    .await;
                assert_eq!(server.of("tools/call").len(), 2);
                assert_eq!(server.connections() == before, is_shared, "{keep_alive:?}");
            }
        },
    )
    .await;
}

/// The files and settings of a server over TLS.
struct Certified {
    acceptor: tokio_rustls::TlsAcceptor,
    ca: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Certified {
    fn new() -> Self {
        let certificates = certificates::Certificates::new();
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, &certificates.ca_pem).unwrap();
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificates));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self {
            acceptor: Arc::new(tls).into(),
            ca,
            _directory: directory,
        }
    }

    /// A fixture whose server is `server`, under the name `host`.
    fn fixture(&self, server: &Server, host: &str) -> Fixture {
        let settings = format!("url: \"https://{host}/mcp\", timeout: 5s");
        let host = Host::parse(host).unwrap();
        let address = unified_proxy::config::StaticAddress {
            address: server.address.ip(),
            port: Some(server.address.port()),
        };
        Fixture::with(&settings, 0, |config| {
            config.proxy.upstream.hosts = Arc::new([(host, address)].into());
            config.proxy.tls.upstream_ca = Some(self.ca.clone());
        })
    }
}

#[tokio::test]
async fn a_call_is_sent_on_an_idle_http2_connection_only_if_it_has_an_open_stream() {
    let certified = Certified::new();
    each_row_async([false, true], async |has_stream| {
        let answer = move |seen: &Seen| match seen.method() {
            "GET" if has_stream => Scripted::events(vec![text(":\n\n"), Part::Hold]),
            _ => {
                handshake(seen, "s1").unwrap_or_else(|| Scripted::result(&seen.message, json!({})))
            }
        };
        let patience = (!has_stream).then_some(Duration::from_millis(1100));
        let server = Server::with(Some(certified.acceptor.clone()), patience, answer).await;
        let fixture = certified.fixture(&server, "kb.example.com");
        let (session, _events) = fixture.open(LEGACY).await;
        server.until("GET").await;
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(1200)).await;
            fixture
                .result(&session, "tools/call", json!({"name": "a"}))
                .await;
        }
        assert_eq!(server.connections(), if has_stream { 1 } else { 3 });
    })
    .await;
}

#[tokio::test]
async fn requests_and_streams_over_tls_share_one_connection_with_a_verified_certificate() {
    let certified = Certified::new();
    let answer = |seen: &Seen| match seen.method() {
        "GET" => Scripted::events(vec![text(":\n\n"), Part::Hold]),
        "slow" => Scripted::events(vec![Part::Hold]),
        _ => handshake(seen, "s1").unwrap_or_else(|| Scripted::result(&seen.message, json!({}))),
    };
    let server = Server::with(Some(certified.acceptor.clone()), None, answer).await;
    let fixture = |host: &str| certified.fixture(&server, host);
    let good = fixture("kb.example.com");
    let (session, _events) = good.open(LEGACY).await;
    server.until("GET").await;
    for _ in 0..5 {
        good.result(&session, "tools/call", json!({"name": "a"}))
            .await;
    }
    assert_eq!(server.connections(), 1);
    let permit = good.permit("slow", json!({})).await;
    let calling = session.request(permit, Events::uncharged(1).0);
    let dropped = tokio::time::timeout(Duration::from_millis(200), calling).await;
    assert!(dropped.is_err());
    drop(session);
    eventually("the streams are reset", || server.open() == 0).await;
    each_row_async(
        [
            "wrong-name.example.com",
            "expired.example.com",
            "self-signed.example.com",
        ],
        async |host| {
            let error = fixture(host).cannot_open(LEGACY).await;
            assert!(matches!(error, MountError::CannotStart(_)), "{error:?}");
            assert!(error.to_string().contains("TLS"), "{error}");
        },
    )
    .await;
}
