//! Permission to connect, as a value.

use std::net::SocketAddr;

use super::flow::{Flow, Principal};
use super::host::Host;

/// What a name resolved to, before it is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(pub Vec<SocketAddr>);

/// Permission to connect to exactly these addresses, for one principal.
///
/// Only the chain's `dial` phase mints one, and only the dialer takes one: there is no other way
/// to open an upstream connection, so "forgot to check" does not compile.
///
/// ```compile_fail,E0451
/// use addons::contract::{Host, Permit, Principal};
///
/// fn forge(host: Host, principal: Principal) -> Permit {
///     Permit { host, addresses: vec![], principal }
/// }
/// ```
#[derive(Debug)]
pub struct Permit {
    host: Host,
    addresses: Vec<SocketAddr>,
    principal: Principal,
}

impl Permit {
    /// Minted by the chain alone, after every addon has seen the addresses.
    pub(super) fn mint(flow: &Flow, addresses: Addresses, principal: Principal) -> Self {
        Self {
            host: flow.host.clone(),
            addresses: addresses.0,
            principal,
        }
    }

    /// The host that the addresses belong to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The addresses that were judged, in the order to try them. Never empty.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// On whose behalf the connection is made.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }
}
