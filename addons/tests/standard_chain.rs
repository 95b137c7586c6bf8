//! The standard chain as a whole: a request goes through it, and quickly.
#![allow(clippy::unwrap_used)]

mod fixtures;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::circuit_breaker::{Breakers, CircuitBreakerSettings, Thresholds};
use addons::contract::*;
use addons::credentials::{Credential, CredentialKind};
use addons::git::{GitSettings, PushWatch};
use addons::github::{Asker, Forge, GithubSettings, Mutations, Node, Patterns};
use addons::observe::{Audit, AuditLine, AuditSettings, AuditSink, Metrics};
use addons::policy::PolicySettings;
use addons::rate_limit::{DnsBudget, Rate, RateBuckets, RateLimitSettings, RequestLimits};
use addons::{Parts, standard_chain};
use bytes::Bytes;
use fixtures::{Nowhere, OneContainer, container, flow, headers, query, request};
use futures_util::FutureExt;
use http::StatusCode;
use parking_lot::Mutex;
use prometheus::Registry;
use zeroize::Zeroizing;

const SECRET: &str = "sk-0123456789abcdef";

struct NoForge;

impl Forge for NoForge {
    fn repo_of_id<'a>(
        &'a self,
        _asker: Asker,
        _id: u64,
    ) -> BoxFuture<'a, Result<Option<String>, Denial>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn nodes<'a>(
        &'a self,
        _asker: Asker,
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
}

struct Silent;

impl PushWatch for Silent {
    fn large(&self, _container: &Container, _repo: &str, _bytes: u64) {}
}

#[derive(Default)]
struct Lines(Mutex<Vec<AuditLine>>);

impl AuditSink for Lines {
    fn write(&self, line: Arc<AuditLine>) {
        self.0.lock().push(Arc::unwrap_or_clone(line));
    }
}

fn chain(lines: &Arc<Lines>) -> Chain {
    let registry = Registry::new();
    let number = |n| NonZeroU32::new(n).unwrap();
    let audit = AuditSettings {
        log: Arc::clone(lines) as Arc<dyn AuditSink>,
        live: Vec::new(),
        lines_per_minute_per_container: number(1_000_000),
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
        containers: OneContainer::new(container("web")),
        rate_limits: RateLimitSettings {
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
            guarded_hosts: HashSet::new(),
            rules: Vec::new(),
        },
        git: GitSettings {
            hosts: HashSet::from([Host::parse("github.com").unwrap()]),
            bot_branch_prefixes: Vec::new(),
            allow_branch_deletion: false,
            public_reads: true,
            report_push_denials: true,
            warning_bytes: 1,
            hard_limit_bytes: 1,
            inspect_bytes: 10_000,
            reachable: Arc::new(|_, host, _| host.name() != Some("evil.example.com")),
            watch: Arc::new(Silent),
        },
        github: GithubSettings {
            hosts: Vec::new(),
            blocked: Patterns::default(),
            allowed: Patterns::default(),
            writes_are_an_allowlist: true,
            public_reads: false,
            mutations: Mutations::new(&[], &[], true),
            forge: Arc::new(NoForge),
        },
        credentials: vec![credential],
        deadline: Duration::from_secs(10),
    };
    standard_chain(parts).unwrap()
}

/// None of the standard addons waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap()
}

fn fields() -> http::HeaderMap {
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

/// One request through all phases; answers what went up and what came down.
fn exchange(chain: &Chain) -> (Request, Vec<u8>) {
    let mut flow = flow(Kind::Http, "api.example.com");
    flow.record.method = Some("GET".into());
    flow.record.path = Some("/v1/messages".into());
    let mut sent = request("/v1/messages", &[]);
    sent.headers = fields();
    now(chain.tunnel(&mut flow)).unwrap();
    now(chain.request(&mut flow, &mut sent)).unwrap();
    let addresses = ["10.0.0.1:443", "93.184.216.34:443"].map(|a| a.parse().unwrap());
    let permit = now(chain.dial(&mut flow, Addresses(addresses.to_vec()))).unwrap();
    flow.record.upstream = permit.addresses().first().copied();
    let mut response = Response::new(StatusCode::OK, headers(&[("alt-svc", "h3")]));
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

#[test]
fn the_standard_chain_is_in_order() {
    let names = [
        "metrics",
        "audit",
        "identity",
        "rate_limit",
        "circuit_breaker",
        "policy",
        "github",
        "git",
        "credentials",
    ];
    assert_eq!(chain(&Arc::default()).names(), names);
}

#[test]
fn a_request_leaves_with_the_secret_and_its_response_comes_back_without() {
    let lines = Arc::new(Lines::default());
    let (sent, body) = exchange(&chain(&lines));
    let field = |name| sent.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(field("authorization"), Some("Bearer sk-0123456789abcdef"));
    assert_eq!(field("accept-encoding"), Some("identity"));
    assert_eq!(field("x-container-id"), None);
    assert_eq!(field("x-forwarded-for"), None);
    assert_eq!(body, b"you sent [REDACTED:key]\n");
    let line = serde_json::to_value(lines.0.lock().first()).unwrap();
    assert_eq!(line["container_id"], "web");
    assert_eq!(line["credential"], "key");
    assert_eq!(line["rule"], "api.example.com");
    assert_eq!(line["upstream_addr"], "93.184.216.34:443");
    assert!(!line.to_string().contains(SECRET));
}

#[test]
fn a_public_read_gets_no_credential_and_one_of_the_containers_own_repositories_does() {
    let chain = chain(&Arc::default());
    for (target, lent) in [("/acme/web", true), ("/acme/other", false)] {
        let mut flow = flow(Kind::Http, "github.com");
        let mut sent = request(target, &[]);
        sent.headers = fields();
        now(chain.tunnel(&mut flow)).unwrap();
        now(chain.request(&mut flow, &mut sent)).unwrap();
        assert_eq!(sent.headers.contains_key("authorization"), lent, "{target}");
    }
}

#[test]
fn a_dns_question_is_judged_and_its_answer_loses_guarded_addresses() {
    let chain = chain(&Arc::default());
    let mut asked = flow(Kind::Dns, "api.example.com");
    now(chain.dns_query(&mut asked, &mut query("api.example.com"))).unwrap();
    let mut answer = DnsAnswer {
        addresses: ["127.0.0.1", "93.184.216.34"]
            .map(|a| a.parse().unwrap())
            .to_vec(),
    };
    now(chain.dns_answer(&mut asked, &mut answer)).unwrap();
    assert_eq!(answer.addresses.len(), 1);

    let mut unlisted = flow(Kind::Dns, "evil.example.com");
    unlisted.entry = None;
    let denial = now(chain.dns_query(&mut unlisted, &mut query("evil.example.com"))).unwrap_err();
    assert_eq!(denial.code(), Code::DomainNotAllowed);
    assert_eq!(denial.addon(), "policy");
}

/// A bound that only a mistake of another order passes: a lock held, an automaton built for
/// every request.
#[test]
fn a_request_costs_microseconds() {
    let chain = chain(&Arc::default());
    exchange(&chain);
    let rounds = 2000;
    let begun = Instant::now();
    for _ in 0..rounds {
        exchange(&chain);
    }
    let each = begun.elapsed() / rounds;
    println!("{each:?} for each request");
    assert!(each < Duration::from_micros(200), "{each:?}");
}
