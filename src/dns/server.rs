//! The sockets of the DNS server, and the tasks that serve them.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::Service;
use super::{tcp, udp};

/// Receive buffer in bytes, for bursts while the loops are busy. The kernel caps it at
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Tasks that receive on one UDP socket: while one judges a question, the other empties the queue.
const UDP_LOOPS: usize = 2;

/// Attempts to find a port that is free for both protocols, if the kernel chooses it.
const CHOICES: usize = 8;

/// The bound sockets of the DNS server, before it serves.
pub struct DnsServer {
    sockets: Vec<(Arc<UdpSocket>, TcpListener)>,
}

impl DnsServer {
    /// Binds UDP and TCP on each address; an error names the address. Panics outside of a tokio
    /// runtime.
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
                // Both protocols must use the port that the kernel chose for TCP.
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

    pub fn local_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets
            .iter()
            .map(|(udp, _)| udp.local_addr())
            .collect()
    }

    /// Serves until `shutdown`, then stops receiving, and returns when the questions under way are
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
