//! An upstream that records the requests and connections that reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use super::certificates::Certificates;
use super::lfs::Store;
use super::routes;

/// A request that the origin received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    /// Path and query, byte for byte.
    pub target: String,
    /// The `Host` field, or `:authority`.
    pub authority: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    pub headers: Vec<(String, String)>,
    /// Number of the request's connection to the origin, counted from 0.
    pub connection: usize,
    pub(super) received: Arc<AtomicU64>,
    pub(super) sent: Arc<AtomicU64>,
    pub(super) trailers: Arc<Mutex<Vec<String>>>,
}

impl Seen {
    /// All values of a field, by its name in lower case.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(n, _)| n == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a field, by its name in lower case. Panics if it was sent more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} was sent {} times", all.len());
        all.first().copied()
    }

    /// The names of the trailers that have arrived by now.
    pub fn trailers(&self) -> Vec<String> {
        self.trailers.lock().clone()
    }

    /// Number of bytes of the request body that have arrived by now.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Number of bytes of the response body of `/bytes/…` or `/chunked/…` that hyper has taken by
    /// now.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }
}

/// A test's function that gets a request and the first MiB of its body as text. It returns a status
/// and a JSON value, or `None` to leave the response to the routes. The origin sends an object,
/// number, boolean or null as JSON, and a string as a complete event stream. A list must hold
/// strings: the origin sends them one by one as an event stream with status 200, with a pause of
/// [`super::PACE`] before each.
pub type Script = dyn Fn(&Seen, &str) -> Option<(u16, serde_json::Value)> + Send + Sync;

pub(super) struct Shared {
    pub script: Option<Box<Script>>,
    pub seen: Mutex<Vec<Seen>>,
    pub connections: AtomicUsize,
    pub open: AtomicUsize,
    pub repositories: TempDir,
    pub files: TempDir,
    pub large_files: Store,
}

/// The origin: the same routes over HTTPS (h2 and HTTP/1.1) and in clear text.
pub struct Origin {
    pub https: SocketAddr,
    pub http: SocketAddr,
    pub ca_pem: String,
    tls: rustls::ServerConfig,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Origin {
    pub fn start() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into())
    }

    /// Starts an origin at an address of the calling thread's network namespace.
    pub fn at(address: IpAddr) -> Self {
        Self::build(None, &["h2", "http/1.1"], address)
    }

    /// Starts an origin that does not speak HTTP/2.
    pub fn without_http2() -> Self {
        Self::build(None, &["http/1.1"], Ipv4Addr::LOCALHOST.into())
    }

    /// Starts an origin that calls `script` first, except for git, Git LFS, `/early` and
    /// `/websocket`; if `script` returns `None`, the routes respond.
    pub fn scripted(
        script: impl Fn(&Seen, &str) -> Option<(u16, serde_json::Value)> + Send + Sync + 'static,
    ) -> Self {
        let protocols = ["h2", "http/1.1"];
        Self::build(
            Some(Box::new(script)),
            &protocols,
            Ipv4Addr::LOCALHOST.into(),
        )
    }

    fn build(script: Option<Box<Script>>, protocols: &[&str], address: IpAddr) -> Self {
        let runtime = Runtime::new().unwrap();
        let shared = Arc::new(Shared {
            script,
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            repositories: TempDir::new().unwrap(),
            files: TempDir::new().unwrap(),
            large_files: Store::default(),
        });
        let certificates = Certificates::new();
        let ca_pem = certificates.ca_pem.clone();
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
        let named = protocols.iter().map(|name| name.as_bytes().to_vec());
        tls.alpn_protocols = named.collect();
        let (https, http) = runtime.block_on(async {
            let tls = TlsAcceptor::from(Arc::new(tls.clone()));
            (
                listen(Arc::clone(&shared), Some(tls), address).await,
                listen(Arc::clone(&shared), None, address).await,
            )
        });
        Self {
            https,
            http,
            ca_pem,
            tls,
            shared,
            runtime: Some(runtime),
        }
    }

    /// TLS configuration with the origin's certificates, for a test's own upstream; `protocols`
    /// are the ALPN names.
    pub fn tls(&self, protocols: &[&str]) -> rustls::ServerConfig {
        let mut tls = self.tls.clone();
        let named = protocols.iter().map(|name| name.as_bytes().to_vec());
        tls.alpn_protocols = named.collect();
        tls
    }

    /// Every request so far, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// The only request so far; panics if there is none or more than one.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "requests at the origin: {seen:?}");
        seen[0].clone()
    }

    /// Number of TCP connections that were accepted so far, with or without a request.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Number of open connections, without those that became WebSockets. A TLS connection counts
    /// from the end of its handshake.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    /// Asserts that no TCP connection was made to the origin.
    pub fn assert_untouched(&self) {
        assert_eq!(self.connections(), 0, "requests: {:?}", self.seen());
    }

    /// The files that were uploaded with Git LFS.
    pub fn large_files(&self) -> &Store {
        &self.shared.large_files
    }

    /// Creates an empty bare repository `NAME.git` that accepts pushes, and returns its path.
    pub fn create_repository(&self, name: &str) -> PathBuf {
        let bare = self.repositories().join(format!("{name}.git"));
        let path = bare.to_str().unwrap();
        for arguments in [
            &["init", "--quiet", "--bare", "--initial-branch=main", path][..],
            &["-C", path, "config", "http.receivepack", "true"],
        ] {
            let status = Command::new("git").args(arguments).status();
            assert!(status.unwrap().success());
        }
        bare
    }

    /// Directory whose files the origin serves by their paths. For the path of a directory, it
    /// serves `index.html`.
    pub fn files(&self) -> &Path {
        self.shared.files.path()
    }

    /// Directory of the bare repositories that the origin serves as `/OWNER/REPO.git`.
    pub fn repositories(&self) -> &Path {
        self.shared.repositories.path()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn listen(shared: Arc<Shared>, tls: Option<TlsAcceptor>, address: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let number = shared.connections.fetch_add(1, Ordering::AcqRel);
            let (shared, tls) = (Arc::clone(&shared), tls.clone());
            tokio::spawn(async move {
                let Some(tls) = tls else {
                    return serve(stream, shared, number, false).await;
                };
                if let Ok(stream) = tls.accept(stream).await {
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    serve(stream, shared, number, h2).await;
                }
            });
        }
    });
    address
}

async fn serve<S>(stream: S, shared: Arc<Shared>, number: usize, h2: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    shared.open.fetch_add(1, Ordering::AcqRel);
    let origin = Arc::clone(&shared);
    let service = service_fn(move |request| routes::respond(Arc::clone(&origin), number, request));
    let io = TokioIo::new(stream);
    // Clients may close the connection during an exchange, so errors are ignored.
    let _ = if h2 {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(io, service).await
    } else {
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(io, service).with_upgrades().await
    };
    shared.open.fetch_sub(1, Ordering::AcqRel);
}

/// A TCP server that runs a test's function on each connection. It stands in for upstreams whose
/// bytes no HTTP library would send.
pub struct RawOrigin {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl RawOrigin {
    /// Runs `script` on every connection, each on its own thread.
    pub fn start(script: impl Fn(StdStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        let connections: Arc<AtomicUsize> = Arc::default();
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::AcqRel);
                let script = Arc::clone(&script);
                std::thread::spawn(move || script(stream));
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Number of connections that were accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }
}
