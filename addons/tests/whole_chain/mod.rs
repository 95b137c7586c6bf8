//! The standard chain as a whole, and one request through all its phases.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc
)]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::circuit_breaker::{Breakers, CircuitBreakerSettings, Thresholds};
use addons::contract::*;
use addons::credentials::{Credential, CredentialKind};
use addons::git::{GitMetrics, GitSettings, PushWatch};
use addons::github::{Forge, GithubSettings, Mentions, Mutations, Node, Patterns, Requester};
use addons::observe::{Audit, AuditSettings, AuditSink, Destination, Metrics};
use addons::policy::PolicySettings;
use addons::rate_limit::{
    DnsBudget, Rate, RateBuckets, RateLimitSettings, RequestLimits, TunnelBudget,
};
use addons::{Parts, standard_chain};
use bytes::Bytes;
use futures_util::FutureExt;
use http::StatusCode;
use parking_lot::Mutex;
use prometheus::Registry;
use zeroize::Zeroizing;

use super::fixtures::{Nowhere, flow, headers, request};

pub const SECRET: &str = "sk-0123456789abcdef";

struct NoForge;

impl Forge for NoForge {
    fn repo_of_id<'a>(
        &'a self,
        _asker: Requester,
        _id: u64,
    ) -> BoxFuture<'a, Result<Option<String>, Denial>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn nodes<'a>(
        &'a self,
        _asker: Requester,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<Vec<Option<Node>>, Denial>> {
        Box::pin(std::future::ready(Ok(vec![None; ids.len()])))
    }
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

struct Silent;

impl PushWatch for Silent {
    fn large(&self, _container: &Container, _repo: &str, _bytes: u64) {}
}

#[derive(Default)]
pub struct Lines(pub Mutex<Vec<String>>);

impl AuditSink for Lines {
    fn write(&self, line: &[u8], _: Instant, _: Destination) {
        let line = str::from_utf8(line).unwrap();
        self.0.lock().push(line.to_owned());
    }
}

/// The chain over a registry, with a secret for `api.example.com` and `github.com`.
pub fn chain(sink: Arc<dyn AuditSink>, containers: Arc<dyn Containers>) -> Chain {
    let registry = Registry::new();
    let number = |n| NonZeroU32::new(n).unwrap();
    let audit = AuditSettings {
        sink,
        lines_per_minute_per_container: number(1_000_000),
        bytes_per_minute_per_container: number(1_000_000_000),
    };
    let credential = Credential {
        name: "key".into(),
        hosts: ["api.example.com", "github.com"]
            .map(|host| (Host::parse(host).unwrap(), 443))
            .to_vec(),
        kind: CredentialKind::Bearer(Arc::new(Fixed)),
        remove_headers: Vec::new(),
        remove_query: Vec::new(),
        remove_cookies: Vec::new(),
        containers: None,
        repos: None,
    };
    let parts = Parts {
        metrics: Arc::new(Metrics::new(&registry).unwrap()),
        audit: Arc::new(Audit::new(audit, &registry).unwrap()),
        spans: None,
        containers,
        rate_limits: RateLimitSettings {
            tunnels: TunnelBudget {
                per_second: number(1_000_000),
            },
            dns: DnsBudget {
                queries_per_minute: number(3000),
                distinct_names_per_minute: number(300),
            },
            requests: Some(RequestLimits::new(
                Rate {
                    per_second: number(1_000_000),
                    burst: number(1_000_000),
                },
                [],
            )),
            buckets: RateBuckets::new(&registry).unwrap(),
        },
        circuit_breakers: CircuitBreakerSettings {
            defaults: Thresholds {
                failures: number(5),
                recovery: Duration::from_secs(30),
                successes: number(2),
            },
            upstreams: EntryMap::default(),
            passthrough: EntryMap::default(),
            breakers: Breakers::new(&registry).unwrap(),
        },
        policy: PolicySettings {
            allow_private: Vec::new(),
            own: Arc::new(Nowhere),
            guarded_hosts: HostSet::default(),
            rules: Vec::new(),
        },
        git: GitSettings {
            hosts: Host::parse("github.com").into_iter().collect(),
            bot_branch_prefixes: Vec::new(),
            allow_branch_deletion: false,
            public_reads: true,
            report_push_denials: true,
            warning_bytes: 1,
            hard_limit_bytes: 1,
            reachable: Arc::new(|_, host, _| host.name() != Some("evil.example.com")),
            watch: Arc::new(Silent),
            metrics: Arc::new(GitMetrics::new(&registry).unwrap()),
        },
        github: GithubSettings {
            hosts: Vec::new(),
            blocked: Patterns::default(),
            allowed: Patterns::default(),
            writes_are_an_allowlist: true,
            public_reads: false,
            mutations: Mutations::new(&[], &[], true),
            mentions: Mentions::new(&[]),
            forge: Arc::new(NoForge),
        },
        credentials: vec![credential],
        deadline: Duration::from_secs(10),
    };
    standard_chain(parts).unwrap()
}

/// None of the standard addons waits.
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

/// What is asked, and what the upstream answers.
pub fn messages() -> (Request, Response) {
    let mut asked = request("/v1/messages", &[]);
    asked.headers = fields();
    let answer = Response::new(StatusCode::OK, headers(&[("alt-svc", "h3")]));
    (asked, answer)
}

/// One request through all phases; answers what went up and what came down.
pub fn exchange(chain: &Chain) -> (Request, Vec<u8>) {
    exchange_of(chain, flow(Kind::Http, "api.example.com"), messages())
}

/// The same for a flow that has begun.
pub fn exchange_of(
    chain: &Chain,
    mut flow: Flow,
    (mut sent, mut response): (Request, Response),
) -> (Request, Vec<u8>) {
    flow.record.method = Some("GET".into());
    flow.record.path = Some("/v1/messages".into());
    now(chain.tunnel(&mut flow)).unwrap();
    now(chain.request(&mut flow, &mut sent)).unwrap();
    let addresses = ["10.0.0.1:443", "93.184.216.34:443"].map(|a| a.parse().unwrap());
    let permit = now(chain.dial(&mut flow, Addresses(addresses.to_vec()))).unwrap();
    flow.record.upstream = permit.addresses().first().copied();
    now(chain.response(&mut flow, &mut response)).unwrap();
    let mut out = BodyOut::default();
    for mut filter in response.take_filters() {
        let chunk = Bytes::from_static(b"you sent sk-0123456789abcdef\n");
        filter.chunk(chunk, &mut out).unwrap();
        filter.end(&mut out, None).unwrap();
    }
    let outcome = Outcome {
        status: 200,
        denial: None,
        aborted: false,
        duration: flow.started.elapsed(),
    };
    chain.finished(&flow, &outcome);
    (sent, out.drain().flatten().collect())
}
