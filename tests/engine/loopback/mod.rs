//! The parts of an engine on loopback: a nameserver, a chain of small addons, a configuration.

pub mod dns_fixture;
#[path = "../../support/nameserver.rs"]
mod nameserver;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::*;
use addons::credentials::CredentialSettings;
use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
pub use nameserver::*;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use unified_proxy::config::*;

/// Reads one framed message.
pub async fn receive(stream: &mut TcpStream) -> std::io::Result<Message> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(Message::from_vec(&bytes).unwrap())
}

/// Writes one message with its length.
pub async fn send(stream: &mut TcpStream, message: &[u8]) {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await.unwrap();
}

/// Containers by address, as a test wants them.
#[derive(Default)]
pub struct FakeContainers {
    known: HashMap<IpAddr, Arc<Container>>,
    pub broken: AtomicBool,
}

impl FakeContainers {
    pub fn at(addresses: &[&str]) -> Self {
        let known = addresses.iter().map(|text| {
            let address: IpAddr = text.parse().unwrap();
            let now = OffsetDateTime::now_utc();
            let container = Container::new(Registration {
                id: ContainerId::parse(text).unwrap(),
                lease: 1,
                source: Source::Address(address),
                repos: Vec::new(),
                auth_mode: AuthMode::User,
                created_at: now,
                expires_at: now + Duration::from_secs(3600),
                allowed_domains: None,
                level: Level::Public,
            });
            (address, Arc::new(container))
        });
        Self {
            known: known.collect(),
            broken: AtomicBool::new(false),
        }
    }

    pub fn get(&self, address: &str) -> &Arc<Container> {
        &self.known[&address.parse::<IpAddr>().unwrap()]
    }
}

impl Containers for FakeContainers {
    fn find(&self, source: &Source) -> Result<Option<Arc<Container>>, Unavailable> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Unavailable);
        }
        match source {
            Source::Address(address) => Ok(self.known.get(address).cloned()),
            Source::Listener(_) => Ok(None),
        }
    }

    fn available(&self) -> bool {
        !self.broken.load(Ordering::SeqCst)
    }

    fn expire(&self, _container: &Arc<Container>) {}
}

/// How a flow ended, as the last addon was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub host: String,
    pub method: Option<String>,
    pub status: u16,
    pub outcome: &'static str,
}

pub type Log = Arc<Mutex<Vec<Ended>>>;

struct Identity(Arc<FakeContainers>);

impl Addon for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn dns_query<'a>(&'a self, flow: &'a mut Flow, _query: &'a mut DnsQuery) -> Step<'a> {
        let found = flow.client.source.as_ref().map(|s| self.0.find(s));
        match found {
            Some(Ok(Some(container))) => {
                flow.principal = Some(container.into());
                Step::PASS
            }
            _ => Step::from(Err(Denial::new(Code::UnknownSource, "Unknown source IP"))),
        }
    }
}

struct Policy(Log);

impl Addon for Policy {
    fn name(&self) -> &'static str {
        "policy"
    }

    fn dns_query<'a>(&'a self, flow: &'a mut Flow, query: &'a mut DnsQuery) -> Step<'a> {
        let denial = match query.name.name() {
            _ if flow.entry.is_none() => Denial::new(Code::DomainNotAllowed, "Domain not allowed"),
            Some("limited.example.com") => Denial::new(Code::RateLimited, "Rate limit exceeded"),
            Some("broken.example.com") => Denial::internal(),
            Some("panics.example.com") => panic!("an addon panics"),
            _ => return Step::PASS,
        };
        Step::from(Err(denial))
    }

    fn dns_answer<'a>(&'a self, _flow: &'a mut Flow, answer: &'a mut DnsAnswer) -> Step<'a> {
        answer.addresses.retain(|address| match address {
            IpAddr::V4(v4) => !v4.is_private() && !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_unique_local() && !v6.is_loopback(),
        });
        Step::PASS
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        self.0.lock().push(Ended {
            host: flow.host.to_string(),
            method: flow.record.method.as_deref().map(str::to_owned),
            status: outcome.status,
            outcome: outcome.label(),
        });
    }
}

/// Identity and a policy that goes by the allowlist, with a few names that misbehave.
pub fn chain(containers: &Arc<FakeContainers>, log: &Log) -> Arc<Chain> {
    let addons: Vec<Arc<dyn Addon>> = vec![
        Arc::new(Identity(Arc::clone(containers))),
        Arc::new(Policy(Arc::clone(log))),
    ];
    let chain = Chain::new(addons, Duration::from_secs(5));
    Arc::new(chain.unwrap_or_else(|errors| panic!("{errors:?}")))
}

pub fn upstream(nameserver: SocketAddr, hosts: &[(&str, &str, Option<u16>)]) -> UpstreamConfig {
    let hosts = hosts.iter().map(|(name, address, port)| {
        let fixed = StaticAddress {
            address: address.parse().unwrap(),
            port: *port,
        };
        (Host::parse(name).unwrap(), fixed)
    });
    UpstreamConfig {
        nameservers: vec![nameserver],
        hosts: Arc::new(hosts.collect()),
        allow_private: Vec::new(),
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(300),
        idle_timeout: Duration::from_secs(300),
    }
}

/// The default configuration with `*.example.com` allowed.
pub fn config(upstream: UpstreamConfig) -> Config {
    let mut allowlist = EntryMap::default();
    let pattern = HostPattern::parse("*.example.com").unwrap();
    let origin = Origin {
        file: "allowlist.yaml".into(),
        line: 1,
    };
    let entry = Entry {
        label: pattern.to_string().into(),
        pattern: pattern.clone(),
        ports: vec![80, 443],
        websocket: true,
        max_level: Level::Secret,
        origin,
        state: TypeMap::default(),
    };
    allowlist.insert(pattern, Arc::new(entry));
    Config {
        proxy: proxy(upstream),
        allowlist,
        policy: policy(),
        credentials: CredentialSettings::default(),
        files: Vec::new(),
        warnings: Vec::new(),
    }
}

fn proxy(upstream: UpstreamConfig) -> ProxyConfig {
    let types = [RecordType::A, RecordType::AAAA, RecordType::CNAME];
    ProxyConfig {
        listen: Listen {
            proxy: Vec::new(),
            dns: Vec::new(),
            mcp: Vec::new(),
            admin: PathBuf::from("api.sock"),
        },
        admin_mode: 0o600,
        admin_uids: Vec::new(),
        data_dir: PathBuf::new(),
        certs_dir: PathBuf::new(),
        shutdown_timeout: Duration::from_secs(10),
        tls: TlsConfig {
            passthrough: EntryMap::default(),
            upstream_ca: None,
        },
        upstream,
        limits: Limits {
            max_connections: 1,
            max_connections_per_container: 1,
            header_read_timeout: Duration::from_secs(15),
            max_header_bytes: 65536,
            inspect_body_bytes: 8 << 20,
            inspect_values: 100_000,
            inspect_timeout: Duration::from_secs(30),
            inspect_memory: 256 << 20,
            tunnels_per_second: 50,
            certificates_per_minute: 120,
        },
        dns: DnsConfig {
            types: types.map(u16::from).into(),
            queries_per_minute: 3000,
            distinct_names_per_minute: 300,
        },
        logging: Logging {
            level: "info".into(),
            json: true,
        },
        collector: None,
        audit: AuditConfig {
            path: PathBuf::new(),
            max_bytes: 100 << 20,
            keep: 5,
            lines_per_minute_per_container: 6000,
            bytes_per_minute_per_container: 2 << 20,
        },
    }
}

fn policy() -> PolicyConfig {
    PolicyConfig {
        api: ApiPolicy {
            blocked_patterns: Default::default(),
            allowed_patterns: Default::default(),
            blocked_mutations: Vec::new(),
            allowed_mutations: Vec::new(),
            blocked_mentions: Vec::new(),
            writes_are_an_allowlist: true,
        },
        rules: Vec::new(),
        allow_branch_deletion: false,
        git: GitConfig {
            hosts: Vec::new(),
            bot_branch_prefixes: Vec::new(),
            public_reads: false,
            report_push_denials: true,
            warning_bytes: 50 << 20,
            hard_limit_bytes: 100 << 20,
        },
        circuit_breakers: CircuitBreakers {
            defaults: CircuitBreaker {
                failure_threshold: 5,
                recovery_timeout: Duration::from_secs(30),
                success_threshold: 2,
            },
            upstreams: EntryMap::default(),
        },
        rate_limits: RateLimits {
            enabled: true,
            defaults: RateLimit {
                requests_per_second: 100,
                burst_size: 200,
            },
            per_upstream: EntryMap::default(),
        },
    }
}
