//! Benchmarks of parts of the addons: host look-up among 10,000 patterns, a push of 1,000 commands,
//! a scrubbed body of 64 KiB, a list of 1,000 MCP tools, and a tool call of 1 KB.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../tests/fixtures/mod.rs"]
mod fixtures;

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::settings::Place;
use addons::contract::*;
use addons::credentials::{Credential, CredentialKind, Credentials};
use addons::git::{Git, GitMetrics, GitSettings};
use addons::mcp::{
    E2bSettings, Exposed, Injected, ListedTool, Mcp, McpPorts, McpSettings, OverrideRule, Scope,
    ServerKind, ServerSettings,
};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fixtures::ports::{NoPolicies, NoRecords, TestTasks};
use fixtures::{container, entry, flow_of, mcp_flow_about, request, send_body};
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

const PATTERNS: usize = 10_000;
const COMMANDS: usize = 1_000;
/// Size of a body chunk in the scrubber benchmark, in bytes.
const CHUNK: usize = 64 << 10;
const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";

fn matcher(criterion: &mut Criterion) {
    let mut allowlist = EntryMap::default();
    for number in 0..PATTERNS {
        let pattern = match number % 2 {
            0 => format!("h{number}.example.net"),
            _ => format!("*.h{number}.example.net"),
        };
        allowlist.insert(HostPattern::parse(&pattern).unwrap(), entry(&pattern));
    }
    let mut group = criterion.benchmark_group("10,000 patterns");
    for (name, host) in [
        ("a name", "h5000.example.net"),
        ("below a wildcard", "a.b.h5001.example.net"),
        ("no match", "a.b.c.d.example.org"),
    ] {
        let host = Host::parse(host).unwrap();
        group.bench_function(name, |bench| {
            bench.iter(|| allowlist.find(black_box(&host)))
        });
    }
    group.finish();
}

fn git() -> Git {
    let settings = GitSettings {
        hosts: Host::parse("github.com").into_iter().collect(),
        bot_branch_prefixes: Arc::default(),
        allow_branch_deletion: false,
        public_reads: false,
        report_push_denials: true,
        warning_bytes: 50 << 20,
        hard_limit_bytes: 100 << 20,
    };
    let metrics = GitMetrics::new(&prometheus::Registry::new()).unwrap();
    let reachable = Arc::new(|_: &Container, _: &Host, _| true);
    Git::new(settings, reachable, Arc::new(metrics))
}

/// Commands of a push as pkt-lines, and the beginning of a pack.
fn push_body() -> Bytes {
    let mut body = String::new();
    for number in 0..COMMANDS {
        let (old, new) = ("1".repeat(40), "2".repeat(40));
        let mut line = format!("{old} {new} refs/heads/sandbox/branch-{number}");
        if number == 0 {
            line.push_str("\0report-status");
        }
        write!(body, "{:04x}{line}", line.len() + 4).unwrap();
    }
    body.push_str("0000PACK");
    body.into()
}

fn pkt_lines(criterion: &mut Criterion) {
    let git = git();
    let body = push_body();
    let mut group = criterion.benchmark_group("a push");
    group.throughput(Throughput::Elements(COMMANDS as u64));
    group.bench_function("1,000 commands", |bench| {
        bench.iter(|| {
            let mut flow = flow_of(&container("web"), Kind::Http, "github.com");
            let mut request = request("/acme/web/git-receive-pack", &[]);
            request.method = Method::POST;
            git.request(&mut flow, &mut request)
                .ready()
                .unwrap()
                .unwrap();
            let (sent, verdict) = send_body(&mut flow, &mut request, &[&body]);
            verdict.unwrap();
            sent.len()
        });
    });
    group.finish();
}

struct Fixed;

impl SecretSource for Fixed {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        Ok(Arc::new(Zeroizing::new(SECRET.to_owned())))
    }

    fn version(&self) -> u64 {
        0
    }
}

fn scrubber(criterion: &mut Criterion) {
    let addon = Credentials::new(vec![Credential {
        name: "vendor".into(),
        hosts: vec![(Host::parse("api.example.com").unwrap(), 443)],
        kind: CredentialKind::Bearer(Arc::new(Fixed)),
        remove_headers: Vec::new(),
        remove_query: Vec::new(),
        remove_cookies: Vec::new(),
        containers: None,
        repos: None,
    }]);
    let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
    let mut sent = request("/", &[]);
    addon
        .request(&mut flow, &mut sent)
        .ready()
        .unwrap()
        .unwrap();
    let text = br#"{"id":"msg_01","type":"message","content":[{"text":"Nothing of note."}]}"#;
    let plain: Bytes = text.iter().copied().cycle().take(CHUNK).collect();
    let echo: Bytes = [&*plain.slice(SECRET.len()..), SECRET.as_bytes()]
        .concat()
        .into();
    let mut group = criterion.benchmark_group("scrubber, 64 KiB");
    group.throughput(Throughput::Bytes(CHUNK as u64));
    for (name, chunk) in [("nothing to find", &plain), ("an echo", &echo)] {
        let mut response = Response::new(StatusCode::OK, HeaderMap::new());
        addon
            .response(&mut flow, &mut response)
            .ready()
            .unwrap()
            .unwrap();
        let mut filter = response.take_filters().pop().unwrap();
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let mut out = BodyOut::default();
                filter.chunk(chunk.clone(), &mut out).unwrap();
                out.drain().map(|bytes| bytes.len()).sum::<usize>()
            });
        });
    }
    group.finish();
}

fn server() -> Arc<ServerSettings> {
    Arc::new(ServerSettings {
        name: "kb".into(),
        prefix: "kb_".into(),
        kind: ServerKind::E2b(E2bSettings {
            command: Vec::new(),
            template: None,
        }),
        timeout: Duration::from_secs(60),
        containers: vec!["*".into()],
        scope: Scope::Container,
        classification: None,
        resources: Vec::new(),
        prompts: Vec::new(),
        place: Place { line: 1, column: 1 },
    })
}

/// A tool of about 1 KB.
fn tool(number: usize) -> Arc<Definition> {
    let fields = (0..12).map(|n| {
        let schema = json!({ "type": "string", "description": "One of the tool's fields" });
        (format!("field_{n}"), schema)
    });
    let properties: serde_json::Map<_, _> = fields.collect();
    let tool = json!({
        "name": format!("tool_{number}"), "description": "Finds what is asked for",
        "inputSchema": { "type": "object", "properties": properties, "required": ["field_1"] },
    });
    let raw = RawValue::from_string(tool.to_string()).unwrap();
    Arc::new(ListedTool::read(raw).unwrap().pinned(Pin::Accepted))
}

fn overriding(tools: usize) -> Arc<McpSettings> {
    let mut settings = McpSettings::default();
    settings.servers.insert("kb".into(), server());
    for number in 0..tools {
        let rule = OverrideRule {
            hide_fields: vec!["field_2".into()],
            defaults: vec![("field_3".into(), Injected::Value("x".into()))],
            ..OverrideRule::default()
        };
        let key = ("kb".into(), format!("tool_{number}").into());
        settings.overrides.insert(key, vec![Arc::new(rule)]);
    }
    Arc::new(settings)
}

fn mcp(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("MCP");
    let listings = [(server(), (0..1000).map(tool).collect())];
    let web = container("web");
    for (name, overrides) in [("1,000 tools", 0), ("1,000 tools, each changed", 1000)] {
        let settings = overriding(overrides);
        group.bench_function(name, |bench| {
            bench.iter(|| Exposed::of(&settings, &web, &listings).tools().count())
        });
    }
    let text = "x".repeat(900);
    let params = json!({ "name": "tool_0", "arguments": { "field_1": text, "field_2": "y" } });
    let params = RawValue::from_string(params.to_string()).unwrap();
    let (server, definition) = (Arc::from("kb"), tool(0));
    for (name, overrides) in [("a call of 1 KB", 0), ("a call of 1 KB, changed", 1)] {
        let ports = McpPorts {
            evaluator: Arc::new(NoPolicies),
            records: Arc::new(NoRecords),
            ledger: Arc::new(NoLedger),
            accepted: Arc::new(NoDefinitions),
            tasks: Arc::new(TestTasks),
        };
        let addon = Mcp::new(overriding(overrides), ports);
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let mut flow = mcp_flow_about(&web, Some("kb"), "tools/call", "tool_0");
                let params = Some(params.clone());
                let target = McpTarget::of(&server, Some(&definition));
                let mut frame = Frame::request(Direction::ToServer, target, "tools/call", params)
                    .of_tool(Arc::clone(&definition));
                addon
                    .mcp_request(&mut flow, &mut frame)
                    .ready()
                    .unwrap()
                    .unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, matcher, pkt_lines, scrubber, mcp);
criterion_main!(benches);
