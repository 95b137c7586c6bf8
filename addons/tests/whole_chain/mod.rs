//! The standard chain, and one request through all of its phases.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc
)]

use std::sync::Arc;
use std::time::Duration;

use addons::contract::*;
use addons::mcp::McpPorts;
use addons::observe::{AuditSink, Destination};
use addons::{Ports, Settings, State, standard_chain};
use bytes::Bytes;
use futures_util::FutureExt;
use http::StatusCode;
use parking_lot::Mutex;
use prometheus::Registry;

use super::fixtures::ports::{MemoryFiles, NoOutbound, NoPolicies, NoRecords, TestTasks};
use super::fixtures::{Nowhere, headers, read_files, request, start};

// The limits in these two files are so high that no test reaches them.
const PROXY: &str = "version: 1
limits: { tunnels_per_second: 1000000 }
audit: { lines_per_minute_per_container: 1000000, bytes_per_minute_per_container: 1GB }
";
const POLICY: &str = "version: 1
git: { public_reads: allow }
rate_limits: { defaults: { requests_per_second: 1000000, burst_size: 1000000 } }
";

const CREDENTIALS: &str = "version: 1
credentials:
  - { name: key, hosts: [api.example.com, github.com], bearer: sk-0123456789abcdef }
";

pub const SECRET: &str = "sk-0123456789abcdef";

#[derive(Default)]
pub struct Lines(pub Mutex<Vec<String>>);

impl AuditSink for Lines {
    fn write(&self, line: &[u8], _: Destination) {
        let line = str::from_utf8(line).unwrap();
        self.0.lock().push(line.to_owned());
    }
}

/// The standard chain with a credential for `api.example.com` and `github.com`.
pub fn chain(sink: Arc<dyn AuditSink>, containers: Arc<dyn Containers>) -> Arc<Chain> {
    let registry = Registry::new();
    let settings = read_files(
        &[
            ("proxy.yaml", PROXY),
            ("policy.yaml", POLICY),
            ("credentials.yaml", CREDENTIALS),
        ],
        |files| Settings::read(files, &MemoryFiles::default()),
    );
    let settings = settings.unwrap();
    let outside = SystemPorts {
        outbound: Arc::new(NoOutbound),
        files: Arc::new(MemoryFiles::default()),
        tasks: Arc::new(TestTasks),
    };
    let state = State::new(settings.audit, sink, outside, &registry).unwrap();
    let ports = Ports {
        state,
        containers,
        own: Arc::new(Nowhere),
        ledger: Arc::new(NoLedger),
        mcp: McpPorts {
            evaluator: Arc::new(NoPolicies),
            records: Arc::new(NoRecords),
            ledger: Arc::new(NoLedger),
            accepted: Arc::new(NoDefinitions),
            tasks: Arc::new(TestTasks),
        },
        deadline: Duration::from_secs(10),
    };
    Arc::new(standard_chain(&settings, ports).unwrap())
}

/// Returns the output of a future that is ready at its first poll. Panics if the future waits. In
/// these tests, no future of the standard chain waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap()
}

pub fn fields() -> http::HeaderMap {
    headers(&[
        ("accept", "application/json"),
        ("accept-encoding", "gzip, br"),
        ("accept-language", "en"),
        (
            "authorization",
            "Bearer up-placeholder-0123456789abcdef0123456789abcdef",
        ),
        ("content-type", "application/json"),
        ("host", "api.example.com"),
        ("user-agent", "agent/1.0 (linux; x86_64)"),
        ("x-container-id", "web"),
        ("x-forwarded-for", "10.0.0.7"),
        ("x-request-id", "0123456789abcdef0123456789abcdef"),
    ])
}

/// A request, and the upstream's response.
pub fn messages() -> (Request, Response) {
    let mut asked = request("/v1/messages", &[]);
    asked.headers = fields();
    let answer = Response::new(StatusCode::OK, headers(&[("alt-svc", "h3")]));
    (asked, answer)
}

/// Runs one request through all phases. Returns the request for the upstream, and the body for the
/// client.
pub fn exchange(chain: &Arc<Chain>) -> (Request, Vec<u8>) {
    exchange_of(chain, start(Kind::Http, "api.example.com"), messages())
}

/// Runs the given messages through all phases, in a flow with the given start.
pub fn exchange_of(
    chain: &Arc<Chain>,
    start: FlowStart,
    (mut sent, mut response): (Request, Response),
) -> (Request, Vec<u8>) {
    let mut live = LiveFlow::begin(chain, start);
    live.record().method = Some("GET".into());
    live.record().path = Some("/v1/messages".into());
    let flow = &mut live.flow;
    now(chain.tunnel(flow)).unwrap();
    now(chain.request(flow, &mut sent)).unwrap();
    let addresses = ["10.0.0.1:443", "93.184.216.34:443"].map(|a| a.parse().unwrap());
    let permit = now(chain.dial(flow, addresses.to_vec())).unwrap();
    live.record().upstream_addr = permit.addresses().first().copied();
    now(chain.response(&mut live.flow, &mut response)).unwrap();
    let mut out = BodyOut::default();
    for mut filter in response.take_filters() {
        let chunk = Bytes::from_static(b"you sent sk-0123456789abcdef\n");
        filter.chunk(chunk, &mut out).unwrap();
        filter.end(&mut out, None).unwrap();
    }
    live.answered(200);
    live.complete();
    drop(live);
    (sent, out.drain().flatten().collect())
}
