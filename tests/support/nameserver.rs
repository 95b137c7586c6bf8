//! A nameserver that answers from a table, over UDP and TCP.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use parking_lot::Mutex;

const A: u16 = 1;
const NO_SUCH_NAME: u8 = 3;
/// Asked over UDP, a name that begins so is answered with the truncation bit alone.
const TRUNCATED: &str = "long.";

/// What a name resolves to.
struct Known {
    addresses: Vec<Ipv4Addr>,
    /// Replaces `addresses` once they were given out; such answers have a TTL of 0.
    then: Option<Vec<Ipv4Addr>>,
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

    /// The addresses for one question of type A, and their TTL.
    fn give(&mut self) -> (Vec<Ipv4Addr>, u32) {
        let given = self.addresses.clone();
        if let Some(then) = self.then.take() {
            self.addresses = then;
        }
        (given, self.ttl)
    }
}

/// Knows A records only; every other type is an empty answer.
pub struct Nameserver {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    names: Mutex<HashMap<String, Known>>,
    asked: Mutex<Vec<String>>,
}

impl Nameserver {
    pub fn start(names: &[(&str, &[Ipv4Addr])]) -> Self {
        let own =
            |(name, addresses): &(&str, &[Ipv4Addr])| (name.to_string(), Known::lasting(addresses));
        let state = Arc::new(State {
            names: Mutex::new(names.iter().map(own).collect()),
            asked: Mutex::default(),
        });
        // TCP takes the number that UDP got; another process may hold it, so try again then.
        let (udp, tcp) = std::iter::repeat_with(|| {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            let tcp = TcpListener::bind(udp.local_addr().unwrap());
            tcp.map(|tcp| (udp, tcp))
        })
        .find_map(Result::ok)
        .unwrap();
        let address = udp.local_addr().unwrap();
        let state_of_udp = Arc::clone(&state);
        std::thread::spawn(move || serve_udp(&udp, &state_of_udp));
        let state_of_tcp = Arc::clone(&state);
        std::thread::spawn(move || serve_tcp(&tcp, &state_of_tcp));
        Self { address, state }
    }

    /// Changes what a name resolves to, as whoever rebinds a name does.
    pub fn set(&self, name: &str, addresses: &[Ipv4Addr]) {
        let mut names = self.state.names.lock();
        names.insert(name.to_owned(), Known::lasting(addresses));
    }

    /// Answers the first question for a name otherwise than every question after it.
    pub fn rebind(&self, name: &str, first: Ipv4Addr, then: Ipv4Addr) {
        let known = Known {
            addresses: vec![first],
            then: Some(vec![then]),
            ttl: 0,
        };
        self.state.names.lock().insert(name.to_owned(), known);
    }

    /// The names that were asked for, in lower case.
    pub fn asked(&self) -> Vec<String> {
        self.state.asked.lock().clone()
    }
}

fn serve_udp(socket: &UdpSocket, state: &State) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
        if let Some(answer) = state.answer(&buffer[..length], true) {
            let _ = socket.send_to(&answer, peer);
        }
    }
}

fn serve_tcp(listener: &TcpListener, state: &State) {
    for mut stream in listener.incoming().flatten() {
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            if stream.read_exact(&mut query).is_err() {
                break;
            }
            let Some(answer) = state.answer(&query, false) else {
                break;
            };
            let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
            let _ = stream.write_all(&[&length, answer.as_slice()].concat());
        }
    }
}

impl State {
    fn answer(&self, query: &[u8], udp: bool) -> Option<Vec<u8>> {
        let (name, end) = read_name(query)?;
        let question = query.get(12..end + 4)?;
        let record_type = u16::from_be_bytes([query[end], query[end + 1]]);
        self.asked.lock().push(name.clone());
        let truncated = udp && name.starts_with(TRUNCATED);
        let mut names = self.names.lock();
        let found = names.get_mut(&name);
        let code = if found.is_some() { 0 } else { NO_SUCH_NAME };
        let known = found.filter(|_| record_type == A && !truncated);
        let (addresses, ttl) = known.map(Known::give).unwrap_or_default();

        let mut answer = query.get(..2)?.to_vec();
        answer.extend([0x81 | if truncated { 2 } else { 0 }, 0x80 | code, 0, 1]);
        answer.extend((addresses.len() as u16).to_be_bytes());
        answer.extend([0; 4]);
        answer.extend(question);
        for address in addresses {
            // The name as a pointer to the question, type A, class IN.
            answer.extend([0xc0, 12, 0, 1, 0, 1]);
            answer.extend(ttl.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(address.octets());
        }
        Some(answer)
    }
}

/// The question's name in lower case, and where it ends.
fn read_name(query: &[u8]) -> Option<(String, usize)> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = query.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}
