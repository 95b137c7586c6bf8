//! The sockets, and the tasks that serve them.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::Service;
use super::{tcp, udp};

/// Asked of the kernel, which grants what its own limit allows: room for a burst while the loops
/// are busy.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Loops on one UDP socket: while one judges a question, the other empties the queue.
const UDP_LOOPS: usize = 2;

/// How many ports the kernel may choose until one is free for both protocols.
const CHOICES: usize = 8;

/// The DNS server on its sockets, not serving yet.
pub struct DnsServer {
    sockets: Vec<(Arc<UdpSocket>, TcpListener)>,
}

impl DnsServer {
    /// Opens UDP and TCP on each address; an error names the address. Needs the runtime.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let open = |address: &SocketAddr| {
            let named = |protocol: &'static str| {
                move |error: io::Error| {
                    let text =
                        format!("cannot listen on {address} for DNS over {protocol}: {error}");
                    io::Error::new(error.kind(), text)
                }
            };
            let mut tries = if address.port() == 0 { CHOICES } else { 1 };
            loop {
                tries -= 1;
                let tcp = open_tcp(*address).map_err(named("TCP"))?;
                // A port that the kernel chose must be the same for both, and free for both.
                match open_udp(tcp.local_addr()?) {
                    Ok(udp) => return Ok((Arc::new(udp), tcp)),
                    Err(error) if tries > 0 && error.kind() == ErrorKind::AddrInUse => {}
                    Err(error) => return Err(named("UDP")(error)),
                }
            }
        };
        let sockets = addresses.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { sockets })
    }

    /// The addresses that are listened on, as they were bound.
    pub fn local_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets
            .iter()
            .map(|(udp, _)| udp.local_addr())
            .collect()
    }

    /// Serves until `shutdown`, then stops receiving and returns when the questions under way are
    /// answered.
    pub async fn serve(self, service: Arc<Service>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        for (socket, listener) in self.sockets {
            for _ in 0..UDP_LOOPS {
                let (socket, service) = (Arc::clone(&socket), Arc::clone(&service));
                let answering = tasks.clone();
                let receive = udp::receive(socket, service, answering);
                tasks.spawn(shutdown.clone().run_until_cancelled_owned(receive));
            }
            let (service, connections) = (Arc::clone(&service), tasks.clone());
            let accept = tcp::accept(listener, service, connections, shutdown.clone());
            tasks.spawn(shutdown.clone().run_until_cancelled_owned(accept));
        }
        shutdown.cancelled().await;
        tasks.close();
        tasks.wait().await;
    }
}

fn open_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

fn open_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = StdTcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
