//! A nameserver on loopback, over UDP and TCP. It runs on its own threads, so that both blocking
//! and asynchronous tests can use it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;

/// Prefix of names in the table whose A queries over UDP get an empty answer with the TC bit.
const TRUNCATED: &str = "long.";

/// The nameserver's response to a query.
pub enum Reply {
    Records(Vec<Record>),
    Code(ResponseCode),
    /// Truncated over UDP, whole over TCP.
    OverTcp(Vec<Record>),
    After(Duration, Vec<Record>),
    Silence,
}

/// The A records of a name in the table; queries for other types get an empty answer.
struct Known {
    addresses: Vec<Ipv4Addr>,
    /// Replaces `addresses` after the first answer with them.
    then: Option<Vec<Ipv4Addr>>,
    /// In seconds.
    ttl: u32,
}

impl Known {
    fn lasting(addresses: &[Ipv4Addr]) -> Self {
        Self {
            addresses: addresses.to_vec(),
            then: None,
            ttl: 60,
        }
    }

    fn reply(&mut self, name: &str, kind: RecordType, transport: Transport) -> Reply {
        let truncated = name.starts_with(TRUNCATED);
        if kind != RecordType::A {
            return Reply::Records(Vec::new());
        }
        if truncated && transport == Transport::Udp {
            return Reply::OverTcp(Vec::new());
        }
        let records = self.addresses.iter().map(|address| {
            let mut record = address_record(name, &address.to_string());
            record.ttl = self.ttl;
            record
        });
        let records = records.collect();
        if let Some(then) = self.then.take() {
            self.addresses = then;
        }
        Reply::Records(records)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

type Zone = dyn Fn(&str, RecordType) -> Reply + Send + Sync;

struct State {
    table: Mutex<HashMap<String, Known>>,
    /// Answers for names that are not in the table.
    zone: Box<Zone>,
    /// Transport and name of every question, in the letter case of the question.
    asked: Mutex<Vec<(Transport, String)>>,
}

/// A nameserver that answers from a table of addresses, which tests may change, or from a function
/// of name and type. It remembers the questions that reached it.
pub struct Nameserver {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Nameserver {
    /// Answers from a table; a name that is not in it does not exist.
    pub fn start(names: &[(&str, &[Ipv4Addr])]) -> Self {
        let server = Self::with_zone(|_, _| Reply::Code(ResponseCode::NXDomain));
        for (name, addresses) in names {
            server.set(name, addresses);
        }
        server
    }

    /// Answers queries for names that are not in the table with the result of `zone`. Its arguments
    /// are the name, in lower case and without the final dot, and the type.
    pub fn with_zone(zone: impl Fn(&str, RecordType) -> Reply + Send + Sync + 'static) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), zone)
    }

    /// As [`Self::with_zone`], at an address of the calling thread's network namespace. With port
    /// 0, the kernel chooses the port.
    pub fn at(
        address: SocketAddr,
        zone: impl Fn(&str, RecordType) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(State {
            table: Mutex::default(),
            zone: Box::new(zone),
            asked: Mutex::default(),
        });
        // TCP needs the port that the kernel chose for UDP; if another process has this port for
        // TCP, both sockets are bound again.
        let (udp, tcp) = std::iter::repeat_with(|| {
            let udp = UdpSocket::bind(address).unwrap();
            let tcp = TcpListener::bind(udp.local_addr().unwrap());
            tcp.map(|tcp| (Arc::new(udp), tcp))
        })
        .find_map(Result::ok)
        .unwrap();
        let address = udp.local_addr().unwrap();
        let of_udp = Arc::clone(&state);
        thread::spawn(move || serve_udp(&udp, &of_udp));
        let of_tcp = Arc::clone(&state);
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let state = Arc::clone(&of_tcp);
                thread::spawn(move || serve_tcp(stream, &state));
            }
        });
        Self { address, state }
    }

    /// Sets the addresses of a name, with a TTL of 60 s.
    pub fn set(&self, name: &str, addresses: &[Ipv4Addr]) {
        let mut table = self.state.table.lock();
        table.insert(name.to_owned(), Known::lasting(addresses));
    }

    /// Answers the first A query for a name with `first` and every later one with `then`, both
    /// with a TTL of 0.
    pub fn rebind(&self, name: &str, first: Ipv4Addr, then: Ipv4Addr) {
        let known = Known {
            addresses: vec![first],
            then: Some(vec![then]),
            ttl: 0,
        };
        self.state.table.lock().insert(name.to_owned(), known);
    }

    /// The names of all questions so far, in lower case.
    pub fn asked(&self) -> Vec<String> {
        let asked = self.state.asked.lock();
        asked.iter().map(|(_, name)| name.to_lowercase()).collect()
    }

    /// The names of all questions over UDP so far, in the letter case of the question.
    pub fn spelled_over_udp(&self) -> Vec<String> {
        let asked = self.state.asked.lock();
        let over_udp = asked.iter().filter(|(by, _)| *by == Transport::Udp);
        over_udp.map(|(_, name)| name.clone()).collect()
    }

    pub fn questions(&self) -> usize {
        self.state.asked.lock().len()
    }

    pub fn tcp_questions(&self) -> usize {
        let asked = self.state.asked.lock();
        asked.iter().filter(|(by, _)| *by == Transport::Tcp).count()
    }
}

fn serve_udp(socket: &Arc<UdpSocket>, state: &State) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
        let Some((wait, answer)) = state.answer(&buffer[..length], Transport::Udp) else {
            continue;
        };
        if wait.is_zero() {
            let _ = socket.send_to(&answer, peer);
        } else {
            let socket = Arc::clone(socket);
            thread::spawn(move || {
                thread::sleep(wait);
                let _ = socket.send_to(&answer, peer);
            });
        }
    }
}

/// Answers the questions of one connection in their order.
fn serve_tcp(mut stream: TcpStream, state: &State) {
    while let Ok(question) = read_framed(&mut stream) {
        if let Some((wait, answer)) = state.answer(&question, Transport::Tcp) {
            thread::sleep(wait);
            let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
            let _ = stream.write_all(&[&length, answer.as_slice()].concat());
        }
    }
}

fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

impl State {
    /// The response to a question and how long to delay it; `None` if the message cannot be parsed
    /// or the zone's reply is [`Reply::Silence`].
    fn answer(&self, question: &[u8], transport: Transport) -> Option<(Duration, Vec<u8>)> {
        let question = Message::from_vec(question).ok()?;
        let query = question.queries.first()?.clone();
        let spelled = query.name().to_ascii();
        let spelled = spelled.trim_end_matches('.');
        self.asked.lock().push((transport, spelled.to_owned()));
        let name = spelled.to_lowercase();
        let from_table = self
            .table
            .lock()
            .get_mut(&name)
            .map(|known| known.reply(&name, query.query_type(), transport));
        let reply = from_table.unwrap_or_else(|| (self.zone)(&name, query.query_type()));

        let mut message = question.into_response();
        message.metadata.recursion_available = true;
        let mut wait = Duration::ZERO;
        match reply {
            Reply::Records(records) => message.answers = records,
            Reply::Code(code) => message.metadata.response_code = code,
            Reply::OverTcp(_) if transport == Transport::Udp => message.metadata.truncation = true,
            Reply::OverTcp(records) => message.answers = records,
            Reply::After(time, records) => {
                wait = time;
                message.answers = records;
            }
            Reply::Silence => return None,
        }
        Some((wait, message.to_vec().unwrap()))
    }
}

pub fn address_record(owner: &str, address: &str) -> Record {
    let address: IpAddr = address.parse().unwrap();
    Record::from_rdata(name(owner), 3600, address.into())
}

pub fn cname_record(owner: &str, target: &str) -> Record {
    Record::from_rdata(name(owner), 3600, RData::CNAME(CNAME(name(target))))
}

fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}
