//! Flows that wait in the chain for longer than the idle timeout of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use addons::contract::*;
use addons::mcp::{McpMetrics, ServerSettings};
use bytes::Bytes;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use unified_proxy::approvals::Ledger;
use unified_proxy::approvals::sqlite::SqliteApprovals;
use unified_proxy::dns::{self, DnsServer, Limits};
use unified_proxy::http::{Inspection, Service};
use unified_proxy::ingress::{self, Engine, ListenerKind, Workers};
use unified_proxy::mcp::policy::PolicyKeeper;
use unified_proxy::mcp::{
    Core, Gateway, GatewayMetrics, MountPorts, Mounts, People, PolicyDesk, Rules, Transport,
    Transports,
};
use unified_proxy::registry::Registry;
use unified_proxy::registry::sqlite::{FILE_NAME, SqliteStore};
use unified_proxy::snapshot::{Snapshot, SnapshotStore};
use unified_proxy::tls::{Authority, CaFiles, UpstreamTls};
use unified_proxy::upstream::{Network, Resolver, SocketBudget};

use crate::loopback::dns_fixture::question;
use crate::loopback::*;

const SANDBOX: &str = "127.0.0.2";
/// Idle timeout of connections, below [`WAIT`]. A client on a busy machine needs less time between
/// its connection and its request.
const IDLE: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(4);
/// Timeout for the proxy to notice that a client has disconnected.
const NOTICED: Duration = Duration::from_secs(4);

/// An addon that denies flows after a delay: [`WAIT`] for `held.example.com`, a minute for
/// `long.example.com`.
#[derive(Default)]
struct Waiter {
    begun: AtomicUsize,
    abandoned: Arc<AtomicUsize>,
}

/// Counts a wait that was dropped before its end.
struct Wait(Option<Arc<AtomicUsize>>);

impl Wait {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(abandoned) = &self.0 {
            abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Waiter {
    fn hold(&self, host: &Host) -> Step<'static> {
        let wait = match host.name() {
            Some("held.example.com") => WAIT,
            Some("long.example.com") => Duration::from_secs(60),
            _ => return Step::PASS,
        };
        self.begun.fetch_add(1, Ordering::SeqCst);
        let guard = Wait(Some(Arc::clone(&self.abandoned)));
        Step::wait_up_to(Duration::from_secs(90), async move {
            tokio::time::sleep(wait).await;
            guard.finish();
            Err(Denial::new(Code::RuleDenied, "No"))
        })
    }
}

impl Addon for Waiter {
    fn name(&self) -> &'static str {
        "policy"
    }

    fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        match (flow.kind, flow.port()) {
            (Kind::Tunnel, 8443) => self.hold(flow.host()),
            _ => Step::PASS,
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        self.hold(flow.host())
    }

    fn dns_query<'a>(&'a self, _flow: &'a mut Flow, query: &'a DnsQuery) -> Step<'a> {
        self.hold(&query.name)
    }
}

/// An MCP gateway without servers.
fn gateway_to_nothing(service: &Service, metrics: &prometheus::Registry) -> Gateway {
    struct Nothing;

    impl Transports for Nothing {
        fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
            panic!("{server:?} is mounted");
        }

        fn settled(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
    }

    impl Definitions for Nothing {
        fn pin<'a>(
            &'a self,
            server: &'a str,
            _: Vec<ListedDefinition>,
        ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>> {
            panic!("{server} lists tools");
        }
    }

    let (of_mounts, of_core) = (
        Arc::clone(&service.snapshots),
        Arc::clone(&service.snapshots),
    );
    let ports = MountPorts {
        chain: Arc::new(move || Some(Arc::clone(of_mounts.current().chain()))),
        definitions: Arc::new(Nothing),
        transports: Arc::new(Nothing),
        memory: Arc::new(|_, _| None),
    };
    let rules = move || Rules {
        chain: Arc::clone(of_core.current().chain()),
        settings: Arc::default(),
        policies_loaded: true,
    };
    let mounts = Arc::new(Mounts::new(ports, &Default::default()));
    let counters = McpMetrics::new(metrics).unwrap();
    let core = Core::new(Box::new(rules), mounts, counters);
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::open(SqliteStore::new(dir.path().join(FILE_NAME)), dir.path());
    let store = SqliteApprovals::new("/nonexistent/approvals.db".into());
    let ledger = Ledger::open(store, Arc::new(time::OffsetDateTime::now_utc)).unwrap();
    let current = || unreachable!("no request asks for the policy");
    let policies = PolicyKeeper::new(Arc::clone(&ledger), current, || Ok(()));
    let desk = PolicyDesk::new(&policies, &ledger, CancellationToken::new());
    let people = People::new(&desk);
    Gateway::new(
        core,
        people,
        GatewayMetrics::new(metrics).unwrap(),
        registry,
    )
}

/// A proxy and a DNS server whose chain has a [`Waiter`].
struct Fixture {
    proxy: std::net::SocketAddr,
    dns: std::net::SocketAddr,
    waiter: Arc<Waiter>,
    trust: RootCertStore,
    shutdown: CancellationToken,
    _directory: TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Fixture {
    async fn start() -> Self {
        let containers = Arc::new(FakeContainers::at(&[SANDBOX]));
        let waiter = Arc::new(Waiter::default());
        let links = vec![
            Link::Identity(Arc::new(Identity(Arc::clone(&containers)))),
            Arc::clone(&waiter).into(),
        ];
        let chain = Chain::new(links, Duration::from_secs(5)).unwrap_or_else(|_| panic!("order"));
        let mut config = config(upstream("127.0.0.1:9".parse().unwrap(), &[]));
        config.proxy.upstream.idle_timeout = IDLE;
        config.proxy.limits.max_connections = 100;
        config.proxy.limits.max_connections_per_container = 100;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let snapshot = Snapshot {
            unloaded_policies: Vec::new(),
            call_policies: String::new(),
            policy: Default::default(),
            network: Arc::new(Network {
                generation: 1,
                chain: Arc::new(chain),
                resolver: Arc::new(Resolver::new(&config.proxy.upstream).unwrap()),
                sockets: Arc::new(SocketBudget::new(8)),
                tls: UpstreamTls::load(None, Arc::clone(&provider)).unwrap(),
                connect_timeout: Duration::from_secs(10),
            }),
            config: Arc::new(config),
            containers,
        };
        let snapshots = Arc::new(SnapshotStore::new(snapshot));
        let directory = tempfile::tempdir().unwrap();
        let files = CaFiles::new(directory.path(), directory.path());
        let public = files.public_path();
        let authority = Arc::new(Authority::open(files, provider).unwrap());
        let mut trust = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(public).unwrap();
        trust.add(ca).unwrap();
        let workers = Workers::start().unwrap();
        let metrics = prometheus::Registry::new();
        let questions = dns::Service::new(Arc::clone(&snapshots), Limits::default());
        let questions = Arc::new(questions);
        let of_engine = Arc::clone(&questions);
        let inspection = Inspection::new(&metrics).unwrap();
        let service = Arc::new(Service::new(snapshots, inspection));
        let gateway = Arc::new(gateway_to_nothing(&service, &metrics));
        let engine = Engine::new(
            service, of_engine, gateway, authority, workers, 100, &metrics,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serving = ingress::serve_tcp(Arc::new(engine.unwrap()), listener, ListenerKind::Proxy);
        tokio::spawn(shutdown.clone().run_until_cancelled_owned(serving));
        let server = DnsServer::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let dns = server.local_addresses().unwrap()[0];
        tokio::spawn(server.serve(questions, shutdown.clone()));
        Self {
            proxy,
            dns,
            waiter,
            trust,
            shutdown,
            _directory: directory,
        }
    }

    async fn connect(&self, to: std::net::SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        let source: std::net::IpAddr = SANDBOX.parse().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Opens a tunnel to a host and does the TLS handshake with the proxy, with this ALPN name.
    async fn tunnel(&self, host: &'static str, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = self.connect(self.proxy).await;
        let connect = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        stream.write_all(connect.as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
        let mut config = ClientConfig::builder()
            .with_root_certificates(self.trust.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from(host).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.unwrap()
    }

    /// Waits until a flow waits in the chain, then drops its client, and waits until the proxy has
    /// aborted the flow.
    async fn abandon<C>(&self, client: C) {
        while self.waiter.begun.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Longer than the idle timeout, which must not end the wait.
        tokio::time::sleep(2 * IDLE).await;
        assert_eq!(self.waiter.abandoned.load(Ordering::SeqCst), 0);
        let gone = Instant::now();
        drop(client);
        while self.waiter.abandoned.load(Ordering::SeqCst) == 0 {
            assert!(
                gone.elapsed() < NOTICED,
                "the proxy did not notice that the client disconnected"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a whole head"));
    }
    String::from_utf8(head).unwrap()
}

/// A request with its whole body.
fn post(target: &str, host: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nhello")
}

/// The head of a request and the first 60,000 bytes of its body: more than the proxy reads before
/// the verdict.
fn upload(target: &str, host: &str) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\n");
    [head.into_bytes(), vec![b'x'; 60_000]].concat()
}

async fn denied_after_the_wait(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), asked: &str) {
    let begun = Instant::now();
    stream.write_all(asked.as_bytes()).await.unwrap();
    let head = read_head(stream).await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert!(head.contains("x-proxy-denied: rule_denied"), "{head}");
    assert!(begun.elapsed() >= WAIT);
}

type H2 = http2::SendRequest<Empty<Bytes>>;

async fn http2(stream: TlsStream<TcpStream>) -> (H2, tokio::task::JoinHandle<()>) {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    let driving = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, driving)
}

fn get(host: &str) -> http::Request<Empty<Bytes>> {
    let uri = format!("https://{host}/");
    http::Request::get(uri).body(Empty::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_http_request_waits_longer_than_the_idle_timeout() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.proxy).await;
    let asked = post("http://held.example.com/", "held.example.com");
    denied_after_the_wait(&mut client, &asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_waits_longer_than_the_idle_timeout() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.proxy).await;
    let asked = "CONNECT held.example.com:8443 HTTP/1.1\r\nHost: held.example.com:8443\r\n\r\n";
    denied_after_the_wait(&mut client, asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_a_tunnel_waits_longer_than_the_idle_timeout() {
    let fixture = Fixture::start().await;
    let mut client = fixture.tunnel("held.example.com", b"http/1.1").await;
    denied_after_the_wait(&mut client, &post("/", "held.example.com")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_http2_waits_longer_than_the_idle_timeout() {
    let fixture = Fixture::start().await;
    let tunnel = fixture.tunnel("held.example.com", b"h2").await;
    let (mut sender, _driving) = http2(tunnel).await;
    let begun = Instant::now();
    let response = sender.send_request(get("held.example.com")).await.unwrap();
    assert_eq!(response.status(), 403);
    assert!(begun.elapsed() >= WAIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_over_tcp_waits_longer_than_the_idle_timeout() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.dns).await;
    let asked = question("held.example.com", RecordType::A);
    let begun = Instant::now();
    send(&mut client, &asked.to_vec().unwrap()).await;
    let answer: Message = receive(&mut client).await.unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
    assert!(begun.elapsed() >= WAIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_ends_the_wait_of_its_request() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.proxy).await;
    let asked = upload("http://long.example.com/", "long.example.com");
    client.write_all(&asked).await.unwrap();
    fixture.abandon(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_ends_the_wait_of_its_connect() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.proxy).await;
    let asked = "CONNECT long.example.com:8443 HTTP/1.1\r\nHost: long.example.com:8443\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    fixture.abandon(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_ends_the_wait_in_its_tunnel() {
    let fixture = Fixture::start().await;
    let mut client = fixture.tunnel("long.example.com", b"http/1.1").await;
    let asked = upload("/", "long.example.com");
    client.write_all(&asked).await.unwrap();
    client.flush().await.unwrap();
    fixture.abandon(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_ends_the_wait_of_its_http2_stream() {
    let fixture = Fixture::start().await;
    let tunnel = fixture.tunnel("long.example.com", b"h2").await;
    let (mut sender, driving) = http2(tunnel).await;
    let asking = tokio::spawn(async move { sender.send_request(get("long.example.com")).await });
    let aborts = Abort(vec![driving.abort_handle(), asking.abort_handle()]);
    fixture.abandon(aborts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_ends_the_wait_of_its_question() {
    let fixture = Fixture::start().await;
    let mut client = fixture.connect(fixture.dns).await;
    let asked = question("long.example.com", RecordType::A);
    send(&mut client, &asked.to_vec().unwrap()).await;
    fixture.abandon(client).await;
}

/// Aborts tasks on drop, and so closes the connection that they own.
struct Abort(Vec<tokio::task::AbortHandle>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}
