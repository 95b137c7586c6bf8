//! Time and allocations of the whole chain for one request, with registries and allowlists of
//! several sizes.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../addons/tests/fixtures/mod.rs"]
mod fixtures;
#[path = "../addons/tests/whole_chain/mod.rs"]
mod whole_chain;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use addons::contract::{
    AuthMode, Chain, Client, ContainerId, Containers, Endpoint, Entry, EntryMap, FlowStart, Host,
    HostPattern, Kind, LeaseId, Request, Response, Scheme, Source, Subject,
};
use addons::observe::{AuditSink, Destination};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use fixtures::entry;
use time::{Duration, OffsetDateTime};
use unified_proxy::registry::sqlite::{FILE_NAME, SqliteStore};
use unified_proxy::registry::{NewRegistration, Registry};
use whole_chain::{exchange_of, messages};

/// Drops the audit line: in the product, another thread writes it.
struct NullSink;

impl AuditSink for NullSink {
    fn write(&self, _: &[u8], _: Destination) {}
}

/// A chain with a registry and an allowlist of given sizes.
struct Setting {
    chain: Arc<Chain>,
    allowlist: EntryMap<Arc<Entry>>,
    client: Client,
    _directory: tempfile::TempDir,
}

impl Setting {
    fn new(containers: u32, patterns: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = registry(directory.path(), containers);
        let mut allowlist = EntryMap::default();
        for number in 0..patterns - 1 {
            let pattern = match number % 2 {
                0 => format!("h{number}.example.net"),
                _ => format!("*.h{number}.example.net"),
            };
            allowlist.insert(HostPattern::parse(&pattern).unwrap(), entry(&pattern));
        }
        let asked = entry("api.example.com");
        allowlist.insert(asked.pattern.clone(), asked);
        let address = address(containers / 2);
        Self {
            chain: whole_chain::chain(Arc::new(NullSink), registry as Arc<dyn Containers>),
            allowlist,
            client: Client {
                source: Some(Source::Address(address)),
                peer: Some(SocketAddr::new(address, 40_000)),
            },
            _directory: directory,
        }
    }

    /// Runs one request through the chain, from the look-up of its allowlist entry to the audit
    /// line.
    fn exchange(&self, messages: (Request, Response)) -> (Request, Vec<u8>) {
        let host = Host::parse("api.example.com").unwrap();
        let entry = self.allowlist.find(&host).cloned();
        let client = self.client.clone();
        let subject = Subject::Upstream(Endpoint {
            scheme: Scheme::Https,
            host,
            port: 443,
        });
        let start = FlowStart::new(Kind::Http, client, subject, entry);
        exchange_of(&self.chain, start, messages)
    }
}

/// The id of the container with this number. The middle container, `web`, sends the requests.
fn name(number: u32, containers: u32) -> String {
    match number == containers / 2 {
        true => "web".to_owned(),
        false => format!("c{number}"),
    }
}

fn address(number: u32) -> IpAddr {
    let [_, b, c, d] = number.to_be_bytes();
    IpAddr::from([10, b, c, d])
}

/// A registry with the container `first` and with `containers` copies of its row.
fn registry(directory: &std::path::Path, containers: u32) -> Arc<Registry> {
    let path = directory.join(FILE_NAME);
    let new = NewRegistration {
        id: ContainerId::parse("first").unwrap(),
        source: Source::Address(IpAddr::from([10, 255, 255, 255])),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        allowed_domains: None,
        expires_at: OffsetDateTime::now_utc() + Duration::hours(1),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let first = Registry::open(SqliteStore::new(path.clone()), directory);
    runtime.unwrap().block_on(first.register(new)).unwrap();
    let mut file = rusqlite::Connection::open(&path).unwrap();
    let copies = file.transaction().unwrap();
    for number in 0..containers {
        copies
            .execute(
                "INSERT INTO containers
                 (lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level)
                 SELECT ?1, ?2, ?3, repos, auth_mode, allowed_domains, created_at, expires_at, level
                 FROM containers WHERE id = 'first'",
                [
                    LeaseId::generate().to_string(),
                    name(number, containers),
                    address(number).to_string(),
                ],
            )
            .unwrap();
    }
    copies.commit().unwrap();
    drop(file);
    Registry::open(SqliteStore::new(path), directory)
}

fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one request");
    for (containers, patterns) in [(10, 10), (10_000, 10), (100_000, 10), (10, 10_000)] {
        let setting = Setting::new(containers, patterns);
        setting.exchange(messages());
        let first = messages();
        let allocations = allocation_counter::measure(|| drop(setting.exchange(first)));
        let name = format!("{containers} containers, {patterns} patterns");
        println!(
            "one request/{name}: {} allocations",
            allocations.count_total
        );
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter_batched(
                messages,
                |messages| setting.exchange(messages),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, growth);
criterion_main!(benches);
