//! Reserves loopback ports, each for one test.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use socket2::{Domain, Socket, Type};

/// An address on 127.0.0.1 whose port is free for UDP and TCP. The port is below the kernel's
/// ephemeral range, so that it is free again when a proxy restarts. While the process of a call
/// runs, no other call returns the same port, in this or in any other process of the network
/// namespace.
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let process = u64::from(now.subsec_nanos()) ^ (u64::from(std::process::id()) << 20);
    static FIRST: OnceLock<u64> = OnceLock::new();
    let first = FIRST.get_or_init(|| process.wrapping_mul(6_364_136_223_846_793_005) >> 33);
    loop {
        // A step that shares no factor with the number of ports visits each of them.
        let step = CALLS.fetch_add(1, Ordering::Relaxed) * 7919;
        let port = 10_240 + u16::try_from((first + step) % 21_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // An abstract Unix socket with this name reserves the port among tests until the process
        // ends, also while the proxy is not running. Abstract names are per network namespace.
        let name = format!("port {port} of a test of unified-proxy");
        let name = UnixAddress::from_abstract_name(name).unwrap();
        let Ok(reservation) = UnixListener::bind_addr(&name) else {
            continue;
        };
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            std::mem::forget(reservation);
            return address;
        }
    }
}

/// An address on 127.0.0.1 at which nothing listens: a socket stays bound to it, without listening,
/// until the process ends.
pub fn closed_address() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address
}
