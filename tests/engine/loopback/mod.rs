//! Fixtures on loopback: a nameserver, a chain of small addons, a configuration.

pub mod dns_fixture;
#[path = "../../support/nameserver.rs"]
mod nameserver;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use addons::contract::*;
use hickory_proto::op::Message;
pub use nameserver::*;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use unified_proxy::config::*;

/// Reads a DNS message after its two bytes of length.
pub async fn receive(stream: &mut TcpStream) -> std::io::Result<Message> {
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(Message::from_vec(&bytes).unwrap())
}

/// Writes a DNS message after its two bytes of length.
pub async fn send(stream: &mut TcpStream, message: &[u8]) {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await.unwrap();
}

/// Containers by address; while `broken` is set, look-ups fail.
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
                lease: LeaseId::generate(),
                source: Source::Address(address),
                repos: Vec::new(),
                auth_mode: AuthMode::User,
                created_at: now,
                expires_at: now + Duration::from_secs(3600),
                allowed_domains: None,
                standing: Standing::default(),
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
            Source::Listener(id) => {
                let mut known = self.known.values();
                Ok(known.find(|container| container.id == *id).cloned())
            }
            Source::Token => Ok(None),
        }
    }

    fn available(&self) -> bool {
        !self.broken.load(Ordering::SeqCst)
    }

    fn expire(&self, _container: &Arc<Container>) {}
}

/// How a flow ended, as [`Policy`] records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub host: String,
    pub method: Option<String>,
    pub status: u16,
    pub outcome: &'static str,
}

pub type Log = Arc<Mutex<Vec<Ended>>>;

pub struct Identity(pub Arc<FakeContainers>);

impl Identify for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn identify(&self, flow: &Flow, _request: Option<&mut Request>) -> Identified {
        if flow.known_container().is_some() {
            return Identified {
                principal: None,
                verdict: Ok(()),
            };
        }
        let found = flow.client.source.as_ref().map(|s| self.0.find(s));
        match found {
            Some(Ok(Some(container))) => Identified {
                principal: Some(container.into()),
                verdict: Ok(()),
            },
            _ => Identified {
                principal: None,
                verdict: Err(Denial::new(Code::UnknownSource, "Unknown source IP")),
            },
        }
    }
}

struct Policy(Log);

impl Addon for Policy {
    fn name(&self) -> &'static str {
        "policy"
    }

    fn dns_query<'a>(&'a self, flow: &'a mut Flow, query: &'a DnsQuery) -> Step<'a> {
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
            host: flow.host().to_string(),
            method: flow.record().method.as_deref().map(str::to_owned),
            status: outcome.status,
            outcome: outcome.label(),
        });
    }
}

/// A chain of two links: [`Identity`] identifies containers; [`Policy`] applies the allowlist,
/// denies or panics for some names, and removes private addresses from answers.
pub fn chain(containers: &Arc<FakeContainers>, log: &Log) -> Arc<Chain> {
    let links = vec![
        Link::Identity(Arc::new(Identity(Arc::clone(containers)))),
        Arc::new(Policy(Arc::clone(log))).into(),
    ];
    let chain = Chain::new(links, Duration::from_secs(5));
    let chain = chain.unwrap_or_else(|errors| panic!("{errors:?}"));
    Arc::new(chain.with_allowlist(allowlist()))
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
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(300),
        idle_timeout: Duration::from_secs(300),
    }
}

/// An allowlist with `*.example.com`.
fn allowlist() -> Arc<Allowlist> {
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
        grant: None,
    };
    allowlist.insert(pattern, Arc::new(entry));
    Arc::new(allowlist)
}

/// The default configuration with `*.example.com` allowed.
pub fn config(upstream: UpstreamConfig) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let allowlist = "version: 1\ndomains: [\"*.example.com\"]\n";
    std::fs::write(dir.path().join("allowlist.yaml"), allowlist).unwrap();
    let mut config = load_with(dir.path(), Profile::Serve, &|_| None).unwrap();
    config.proxy.upstream = upstream;
    config
}
