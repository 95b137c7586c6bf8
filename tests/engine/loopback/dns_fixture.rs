//! The proxy's DNS server on loopback with two containers, and helpers to query it.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{HTTPS, SVCB};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use unified_proxy::dns::{self, DnsServer, Limits};
use unified_proxy::snapshot::{Snapshot, SnapshotStore};
use unified_proxy::tls::UpstreamTls;
use unified_proxy::upstream::{Network, Resolver, SocketBudget};

use super::*;

pub const ONE: &str = "127.0.0.2";
pub const OTHER: &str = "127.0.0.3";
pub const UNKNOWN_SOURCE: &str = "127.0.0.4";

pub const SOON: Duration = Duration::from_secs(2);

/// A DNS server with two containers, and the nameserver that it queries.
pub struct DnsFixture {
    pub address: SocketAddr,
    pub nameserver: Nameserver,
    pub containers: Arc<FakeContainers>,
    pub log: Log,
    /// The service that answers queries over UDP, TCP and HTTP.
    pub service: Arc<dns::Service>,
    pub shutdown: CancellationToken,
    pub served: tokio::task::JoinHandle<()>,
}

impl DnsFixture {
    pub async fn open() -> Self {
        Self::open_with_types(&[]).await
    }

    pub async fn open_with_types(types: &[RecordType]) -> Self {
        let nameserver = Nameserver::with_zone(zone);
        let containers = Arc::new(FakeContainers::at(&[ONE, OTHER]));
        let log = Log::default();
        let hosts = [("fixed.example.com", "198.51.100.1", None)];
        let mut config = config(upstream(nameserver.address, &hosts));
        let more = types.iter().map(|kind| u16::from(*kind));
        config.proxy.dns.types.extend(more);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let snapshots = Arc::new(SnapshotStore::new(Snapshot {
            unloaded_policies: Vec::new(),
            call_policies: String::new(),
            policy: Default::default(),
            network: Arc::new(Network {
                generation: 1,
                chain: chain(&containers, &log),
                resolver: Arc::new(Resolver::new(&config.proxy.upstream).unwrap()),
                sockets: Arc::new(SocketBudget::new(1)),
                tls: UpstreamTls::load(None, provider).unwrap(),
                connect_timeout: Duration::from_secs(10),
            }),
            config: Arc::new(config),
            containers: containers.clone(),
        }));
        let server = DnsServer::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = server.local_addresses().unwrap()[0];
        let shutdown = CancellationToken::new();
        let service = Arc::new(dns::Service::new(snapshots, Limits::default()));
        let served = tokio::spawn(server.serve(Arc::clone(&service), shutdown.clone()));
        Self {
            address,
            nameserver,
            containers,
            log,
            service,
            shutdown,
            served,
        }
    }

    pub async fn socket(&self, source: &str) -> UdpSocket {
        let socket = UdpSocket::bind((source, 0)).await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket
    }

    pub async fn connect(&self, source: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind((source.parse::<IpAddr>().unwrap(), 0).into())
            .unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Runs dig from a source address. Returns the status and the data of the answers. The status
    /// is `none` if no response came.
    pub async fn dig(&self, source: &str, arguments: &str) -> (String, Vec<String>) {
        let port = self.address.port().to_string();
        let mut command = Command::new("dig");
        command.args([
            "@127.0.0.1",
            "-p",
            &port,
            "-b",
            source,
            "+tries=1",
            "+time=6",
        ]);
        command.args(arguments.split(' '));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        let text = String::from_utf8(output.await.unwrap().stdout).unwrap();
        assert!(
            !text.contains("WARNING") && !text.contains("malformed"),
            "{text}"
        );
        let status = text.split("status: ").nth(1).unwrap_or("none");
        let status = status.split(',').next().unwrap().trim().to_owned();
        let data = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        let is_answer = |line: &&str| !line.starts_with(';') && !line.trim().is_empty();
        (status, text.lines().filter(is_answer).map(data).collect())
    }

    pub fn ended(&self) -> Vec<Ended> {
        self.log.lock().clone()
    }
}

fn zone(name: &str, kind: RecordType) -> Reply {
    match (name, kind) {
        (_, RecordType::HTTPS | RecordType::SVCB) => Reply::Records(vec![svcb_record(name, kind)]),
        ("gone.example.com", _) => Reply::Code(ResponseCode::NXDomain),
        ("fails.example.com", _) => Reply::Code(ResponseCode::ServFail),
        ("private.example.com", RecordType::A) => Reply::Records(vec![
            address_record(name, "10.0.0.1"),
            address_record(name, "192.0.2.2"),
            address_record(name, "127.0.0.1"),
        ]),
        ("private.example.com", RecordType::AAAA) => {
            Reply::Records(vec![address_record(name, "fd00::1")])
        }
        ("alias.example.com", RecordType::A | RecordType::AAAA) => Reply::Records(vec![
            cname_record(name, "end.example.net"),
            address_record(
                "end.example.net",
                if kind == RecordType::A {
                    "192.0.2.3"
                } else {
                    "2001:db8::3"
                },
            ),
        ]),
        ("alias.example.com", RecordType::CNAME) => {
            Reply::Records(vec![cname_record(name, "end.example.net")])
        }
        ("big.example.com", RecordType::A) => {
            let many = |n: u8| address_record(name, &format!("192.0.2.{n}"));
            Reply::OverTcp((0..200).map(many).collect())
        }
        ("slow.example.com", RecordType::A) => Reply::After(
            Duration::from_millis(500),
            vec![address_record(name, "192.0.2.5")],
        ),
        (_, _) if name.ends_with("never.example.com") => Reply::Silence,
        (_, RecordType::A) => Reply::Records(vec![address_record(name, "192.0.2.1")]),
        _ => Reply::Records(Vec::new()),
    }
}

/// An HTTPS or SVCB record without parameters.
fn svcb_record(owner: &str, kind: RecordType) -> Record {
    let svcb = SVCB::new(1, Name::root(), Vec::new());
    let data = match kind {
        RecordType::HTTPS => RData::HTTPS(HTTPS(svcb)),
        _ => RData::SVCB(svcb),
    };
    Record::from_rdata(Name::from_ascii(format!("{owner}.")).unwrap(), 60, data)
}

pub fn question(name: &str, kind: RecordType) -> Message {
    let mut query = Query::query(Name::from_ascii(name).unwrap(), kind);
    query.name.set_fqdn(true);
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(query);
    message
}

pub async fn ask(socket: &UdpSocket, question: &[u8]) -> Option<Vec<u8>> {
    socket.send(question).await.unwrap();
    receive_datagram(socket, SOON).await
}

pub async fn receive_datagram(socket: &UdpSocket, limit: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65536];
    let length = timeout(limit, socket.recv(&mut buffer))
        .await
        .ok()?
        .unwrap();
    buffer.truncate(length);
    Some(buffer)
}

pub async fn ask_message(socket: &UdpSocket, question: &Message) -> Message {
    let answer = ask(socket, &question.to_vec().unwrap()).await;
    Message::from_vec(&answer.expect("an answer")).unwrap()
}
