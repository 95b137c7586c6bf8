//! The proxy's own TCP listeners, which no flow may reach.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use addons::contract::{OwnAddresses, fold_address};

/// The ports of the proxy's listeners, on every address of this machine.
///
/// The port is compared first, since checking the address takes a system call. If a NAT in front of
/// this machine maps an address to a listener, a flow to that address is not recognised.
#[derive(Clone, Debug)]
pub struct OwnListeners {
    ports: HashSet<u16>,
}

impl OwnListeners {
    /// Collects the ports of these addresses, at which the proxy's listeners are bound.
    pub fn new(listeners: impl IntoIterator<Item = SocketAddr>) -> Self {
        let ports = listeners.into_iter().map(|address| address.port());
        Self {
            ports: ports.collect(),
        }
    }
}

impl OwnAddresses for OwnListeners {
    /// Whether the port belongs to a listener and the address to this machine. The address that the
    /// listener is bound to does not matter, since a restart may bind the listener elsewhere.
    fn is_ours(&self, address: SocketAddr) -> bool {
        self.ports.contains(&address.port()) && is_this_machine(fold_address(address.ip()))
    }
}

/// Whether an address belongs to this machine. Tries to bind it: the kernel knows all current
/// interfaces, and fails with `EADDRNOTAVAIL` for a foreign address. After any other error the
/// address counts as this machine's, so that the flow is denied.
fn is_this_machine(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_port_of_a_listener_is_ours_on_every_address_of_this_machine() {
        let own = OwnListeners::new(["127.0.0.1:8080".parse().unwrap()]);
        each_row(
            [
                ("127.0.0.1:8080", true),
                ("127.9.9.9:8080", true),
                ("0.0.0.0:8080", true),
                ("[::1]:8080", true),
                ("[::]:8080", true),
                ("[::ffff:127.0.0.1]:8080", true),
                ("127.0.0.1:8081", false),
                ("192.0.2.1:8080", false),
                ("[::ffff:192.0.2.1]:8080", false),
            ],
            |(address, ours)| {
                assert_eq!(own.is_ours(address.parse().unwrap()), ours, "{address}");
            },
        );
    }

    #[test]
    fn the_address_of_an_interface_belongs_to_this_machine() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            assert!(is_this_machine(socket.local_addr().unwrap().ip()));
        }
    }
}
