//! Packets of several kinds from one machine to others, and listeners that record them.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::machine::Machine;

/// Ports of ssh, HTTP, HTTPS, and of a TCP admin API, which the proxy does not have.
const TCP: [u16; 4] = [22, 80, 443, 8081];
/// Ports of QUIC, NTP, and DNS on another port than the proxy's.
const UDP: [u16; 3] = [443, 123, 5353];
/// A protocol number for experiments (RFC 3692).
const PROTOCOL: i32 = 253;
const TIMEOUT: Duration = Duration::from_millis(300);

/// Listeners on a machine: TCP and UDP over IPv4 and IPv6, and a raw protocol over IPv4.
pub struct Listeners {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    raw: Socket,
}

impl Listeners {
    /// Opens the listeners on a machine. With `resolver`, also listens on UDP port 53, which must
    /// be free.
    pub fn on(machine: &Machine, resolver: bool) -> Self {
        machine.run(|| {
            let tcp = TCP.map(|port| TcpListener::bind(("::", port)).unwrap());
            let udp = UDP.into_iter().chain(resolver.then_some(53));
            let udp = udp.map(|port| UdpSocket::bind(("::", port)).unwrap());
            let listeners = Self {
                tcp: tcp.into(),
                udp: udp.collect(),
                raw: raw(),
            };
            listeners
                .tcp
                .iter()
                .for_each(|socket| socket.set_nonblocking(true).unwrap());
            listeners
                .udp
                .iter()
                .for_each(|socket| socket.set_nonblocking(true).unwrap());
            listeners.raw.set_nonblocking(true).unwrap();
            listeners
        })
    }

    /// Waits 300 ms, then returns the packets and connections that arrived since the previous call.
    pub fn received(&self) -> Vec<String> {
        std::thread::sleep(TIMEOUT);
        let mut received = Vec::new();
        for socket in &self.tcp {
            let port = socket.local_addr().unwrap().port();
            while let Ok((_, from)) = socket.accept() {
                received.push(format!("tcp/{port} from {}", from.ip().to_canonical()));
            }
        }
        for socket in &self.udp {
            let port = socket.local_addr().unwrap().port();
            while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                received.push(format!("udp/{port} from {}", from.ip().to_canonical()));
            }
        }
        let mut packet = [MaybeUninit::uninit(); 64];
        while let Ok((_, from)) = self.raw.recv_from(&mut packet) {
            received.push(format!("raw from {}", from.as_socket().unwrap().ip()));
        }
        received
    }
}

/// Opens TCP connections and sends datagrams, raw packets and pings from a machine to addresses.
/// Returns the connections and pings that were answered. [`Listeners`] on the target record the
/// connections, datagrams and raw packets that arrive.
pub fn reach(from: &Machine, targets: &[IpAddr]) -> Vec<String> {
    // Concurrently, because most attempts wait until they time out.
    from.run(|| {
        std::thread::scope(|scope| {
            let tries = targets
                .iter()
                .map(|target| scope.spawn(|| try_all(*target)));
            let tries: Vec<_> = tries.collect();
            let answers = tries.into_iter().map(|attempt| attempt.join().unwrap());
            answers.flatten().collect()
        })
    })
}

fn try_all(target: IpAddr) -> Vec<String> {
    let mut answered = Vec::new();
    for port in TCP {
        match TcpStream::connect_timeout(&SocketAddr::new(target, port), TIMEOUT) {
            Ok(_) => answered.push(format!("tcp/{port} of {target}")),
            // A refusal counts as an answer, because the target sent it.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                answered.push(format!("tcp/{port} of {target}, refused"));
            }
            Err(_) => {}
        }
    }
    let any: IpAddr = if target.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let udp = UdpSocket::bind((any, 0)).unwrap();
    for port in UDP.into_iter().chain([53]) {
        // Sending fails if there is no route. The packet then does not leave, so the error is
        // ignored.
        let _ = udp.send_to(b"out", (target, port));
    }
    if let IpAddr::V4(target) = target {
        let _ = raw().send_to(b"out", &SocketAddr::from((target, 0)).into());
    }
    let ping = Command::new("ping")
        .args(["-c1", "-W1", &target.to_string()])
        .output();
    if ping.unwrap().status.success() {
        answered.push(format!("ping of {target}"));
    }
    answered
}

/// The packets of [`reach`] over IPv4 that [`Listeners::received`] returns if no firewall drops
/// any. The datagram to port 53 is left out, since not all listeners open that port.
pub fn everything(from: Ipv4Addr) -> Vec<String> {
    let tcp = TCP.map(|port| format!("tcp/{port} from {from}"));
    let udp = UDP.map(|port| format!("udp/{port} from {from}"));
    let raw = [format!("raw from {from}")];
    [&tcp[..], &udp, &raw].concat()
}

fn raw() -> Socket {
    let protocol = Some(Protocol::from(PROTOCOL));
    Socket::new(Domain::IPV4, Type::RAW, protocol).unwrap()
}
