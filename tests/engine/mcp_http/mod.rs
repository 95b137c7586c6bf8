//! Sessions with MCP servers over HTTP. The servers are small scripted ones on loopback.

mod bounds;
#[path = "../../support/certificates.rs"]
mod certificates;
mod delegated_flows;
mod legacy;
mod lenient;
mod modern;
mod server;
mod two_endpoints;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::*;
use addons::mcp::ServerKind;
use addons::policy::{Policy, PolicySettings};
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use unified_proxy::config::{Config, Profile, load_with};
use unified_proxy::http::{Inspection, Service};
use unified_proxy::mcp::{
    Dropped, EVENT_QUEUE, Event, Events, HttpParts, HttpTransport, MountError, MountSession,
    Opening, Outcome, Transport, Version,
};
use unified_proxy::snapshot::{Snapshot, SnapshotStore};
use unified_proxy::tls::UpstreamTls;
use unified_proxy::upstream::{Network, Resolver, SocketBudget};

use crate::loopback::FakeContainers;

const CONTAINER: &str = "127.0.0.2";

/// A flow that has ended, as [`Recorder`] records it.
#[derive(Clone, Debug)]
pub struct Line {
    pub kind: Kind,
    pub principal: String,
    pub container: Option<String>,
    pub method: String,
    pub path: String,
    pub status: u16,
    pub label: &'static str,
}

/// An addon that records how flows end. It denies requests with `X-Denied`, adds the field
/// `X-Injected: hunter2` to the others, and redacts that value in responses.
#[derive(Default)]
pub struct Recorder {
    pub lines: Mutex<Vec<Line>>,
}

/// Stands in for the filter that redacts secrets: replaces `hunter2` with asterisks.
struct Scrub;

impl BodyFilter for Scrub {
    fn chunk(&mut self, chunk: bytes::Bytes, out: &mut BodyOut) -> Verdict {
        let text = String::from_utf8_lossy(&chunk).replace("hunter2", "*******");
        out.push(text.into_bytes().into());
        Ok(())
    }

    fn end(&mut self, _out: &mut BodyOut, _trailers: Option<&mut http::HeaderMap>) -> Verdict {
        Ok(())
    }
}

impl Addon for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn request<'a>(&'a self, _flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        if request.headers.contains_key("x-denied") {
            return Step::from(Err(Denial::new(Code::RuleDenied, "No")));
        }
        let injected = http::HeaderValue::from_static("hunter2");
        request.headers.insert("x-injected", injected);
        Step::PASS
    }

    fn response<'a>(&'a self, _flow: &'a mut Flow, response: &'a mut Response) -> Step<'a> {
        response.push_filter(Scrub);
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &addons::contract::Outcome) {
        let principal = match &flow.principal {
            Some(Principal::Delegated(delegation)) => delegation.system.name.to_string(),
            Some(Principal::System(system)) => format!("system {}", system.name),
            Some(Principal::Container(_)) => "container".to_owned(),
            None => "nobody".to_owned(),
        };
        self.lines.lock().push(Line {
            kind: flow.kind,
            principal,
            container: flow.known_container().map(|one| one.id.to_string()),
            method: flow.record().method.as_deref().unwrap_or("").to_owned(),
            path: flow.record().path.as_deref().unwrap_or("").to_owned(),
            status: outcome.status,
            label: outcome.label(),
        });
    }
}

/// Treats this port of every address as a listener of the proxy.
pub struct OurPort(pub u16);

impl OwnAddresses for OurPort {
    fn is_ours(&self, address: std::net::SocketAddr) -> bool {
        address.port() == self.0
    }
}

/// The parts of the engine that mounts need, with one server, `kb`.
pub struct Fixture {
    pub containers: Arc<FakeContainers>,
    pub recorder: Arc<Recorder>,
    pub metrics: prometheus::Registry,
    pub parts: HttpParts,
    chain: Arc<Chain>,
    servers: addons::mcp::McpSettings,
}

impl Fixture {
    /// A fixture whose server `kb` has these settings, in YAML.
    pub fn new(settings: &str) -> Self {
        Self::with(settings, 0, |_| {})
    }

    pub fn at(url: &str) -> Self {
        Self::new(&format!("url: \"{url}\", timeout: 10s"))
    }

    pub fn with(settings: &str, our_port: u16, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mcp = format!("version: 1\nmcpServers:\n  kb: {{ {settings} }}\n");
        std::fs::write(directory.path().join("mcp.yaml"), mcp).unwrap();
        let mut config = load_with(directory.path(), Profile::Serve, &|_| None).unwrap();
        change(&mut config);
        let containers = Arc::new(FakeContainers::at(&[CONTAINER]));
        let recorder = Arc::new(Recorder::default());
        let policy = PolicySettings {
            host_ports: Vec::new(),
            allow_private: Vec::new(),
            guarded_hosts: HostSet::default(),
            rules: Vec::new(),
            asks_about_hosts: false,
            hold: Duration::ZERO,
        };
        let identity = addons::identity::Identity::new(Arc::clone(&containers) as _);
        let links = vec![
            Arc::clone(&recorder).into(),
            Link::Identity(Arc::new(identity)),
            Arc::new(Policy::new(policy, Arc::new(OurPort(our_port)))).into(),
        ];
        let chain = Chain::new(links, Duration::from_secs(5));
        let chain = Arc::new(chain.unwrap_or_else(|errors| panic!("{errors:?}")));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let ca = config.proxy.tls.upstream_ca.clone();
        let servers = (*config.addons.mcp).clone();
        let snapshot = Snapshot {
            unloaded_policies: Vec::new(),
            call_policies: String::new(),
            policy: Default::default(),
            network: Arc::new(Network {
                generation: 1,
                chain: Arc::clone(&chain),
                resolver: Arc::new(Resolver::new(&config.proxy.upstream).unwrap()),
                sockets: Arc::new(SocketBudget::new(400)),
                tls: UpstreamTls::load(ca.as_deref(), provider).unwrap(),
                connect_timeout: Duration::from_secs(5),
            }),
            config: Arc::new(config),
            containers: Arc::clone(&containers) as _,
        };
        let metrics = prometheus::Registry::new();
        let inspection = Inspection::new(&metrics).unwrap();
        let snapshots = Arc::new(SnapshotStore::new(snapshot));
        Self {
            parts: HttpParts {
                service: Arc::new(Service::new(snapshots, inspection)),
                dropped: Dropped::new(&metrics).unwrap(),
                tasks: TaskTracker::new(),
            },
            containers,
            recorder,
            metrics,
            chain,
            servers,
        }
    }

    pub fn transport(&self) -> HttpTransport {
        let server = &self.servers.servers["kb"];
        let ServerKind::Http(settings) = &server.kind else {
            panic!("kb is not mounted over HTTP");
        };
        HttpTransport::new(self.parts.clone(), server, settings)
    }

    pub fn container(&self) -> &Arc<Container> {
        self.containers.get(CONTAINER)
    }

    /// The parameters of a session for a client that speaks `version`, and the receiver of the
    /// server's messages that belong to no request.
    pub fn opening(&self, version: Version) -> (Opening, mpsc::Receiver<Event>) {
        let (unsolicited, events) = Events::uncharged(EVENT_QUEUE);
        let opening = Opening {
            container: Some(Arc::clone(self.container())),
            version,
            capabilities: raw(json!({"elicitation": {}})).into(),
            unsolicited,
        };
        (opening, events)
    }

    /// Opens a session; panics on failure.
    pub async fn open(&self, version: Version) -> (Arc<dyn MountSession>, mpsc::Receiver<Event>) {
        let (opening, events) = self.opening(version);
        let session = self.transport().open(opening).await;
        (session.unwrap_or_else(|error| panic!("{error}")), events)
    }

    /// Returns the error of opening a session; panics if the session opens.
    pub async fn cannot_open(&self, version: Version) -> MountError {
        let opened = self.transport().open(self.opening(version).0).await;
        opened.map(drop).expect_err("the session opened")
    }

    pub async fn permit(&self, method: &str, params: Value) -> CallPermit {
        let target = McpTarget::Server("kb".into());
        let frame = Frame::request(Direction::ToServer, target, method, Some(raw(params)));
        self.permit_for(frame).await
    }

    pub async fn permit_for(&self, frame: Frame) -> CallPermit {
        let subject = McpSubject {
            server: Some("kb".into()),
            method: Arc::clone(&frame.method),
            name: None,
        };
        let mut start = self.chain.for_mcp(Client::default(), subject);
        start.principal = Some(Arc::clone(self.container()).into());
        let mut flow = start.begin();
        self.chain.mcp_request(&mut flow, frame).await.unwrap()
    }

    /// Makes a call; returns its outcome, and the events that arrived before the outcome. Applies
    /// the server's `timeout`, as the core does in production.
    pub async fn call(
        &self,
        session: &Arc<dyn MountSession>,
        method: &str,
        params: Value,
    ) -> (Result<Outcome, MountError>, Vec<Event>) {
        let permit = self.permit(method, params).await;
        let (sender, mut receiver) = Events::uncharged(EVENT_QUEUE);
        let limit = self.servers.servers["kb"].timeout;
        let outcome = tokio::time::timeout(limit, session.request(permit, sender)).await;
        let outcome = outcome.unwrap_or(Err(MountError::TimedOut));
        let mut events = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            events.push(event);
        }
        (outcome, events)
    }

    /// Makes a call and returns its result; panics if the call fails.
    pub async fn result(
        &self,
        session: &Arc<dyn MountSession>,
        method: &str,
        params: Value,
    ) -> Value {
        let (outcome, _) = self.call(session, method, params).await;
        let result = outcome.unwrap_or_else(|error| panic!("{method}: {error}"));
        let result = result.unwrap_or_else(|error| panic!("{method}: {error:?}"));
        serde_json::from_str(result.get()).unwrap()
    }

    pub fn lines(&self) -> Vec<Line> {
        self.recorder.lines.lock().clone()
    }

    /// The number of messages that were dropped for this `reason`, according to the metric.
    pub fn dropped(&self, reason: &str) -> u64 {
        let families = self.metrics.gather();
        let mut families = families.iter();
        let family = families
            .find(|family| family.name() == "proxy_mcp_dropped_messages_total")
            .unwrap();
        let mut metrics = family.get_metric().iter();
        let metric = metrics.find(|one| one.get_label()[0].value() == reason);
        metric.unwrap().get_counter().get_value() as u64
    }
}

pub fn raw(value: Value) -> Box<RawValue> {
    to_raw_value(&value).unwrap()
}

/// The method and params of a notification.
pub fn notification(event: &Event) -> (String, Value) {
    match event {
        Event::Notification { method, params } => {
            let params = params.as_deref().map_or("null", RawValue::get);
            (method.to_string(), serde_json::from_str(params).unwrap())
        }
        Event::Request { method, .. } => panic!("{method} is a request"),
    }
}

/// Checks a condition every 10 ms until it holds; panics after 500 checks, which take about 5 s.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 5 s: {what}");
}
