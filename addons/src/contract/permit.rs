//! Permissions to resolve and to connect, as values.

use std::net::SocketAddr;

use super::flow::Flow;
use super::host::Host;
use super::principal::Principal;

/// Permission to resolve one host, for one port. The chain mints a permit only after every addon
/// has passed the flow in a phase. The resolver takes the host from the permit, so no host is
/// resolved before it is judged.
///
/// ```compile_fail,E0451
/// use addons::contract::{Host, ResolvePermit};
///
/// fn forge(host: Host) -> ResolvePermit {
///     ResolvePermit { host, port: 443 }
/// }
/// ```
#[derive(Debug)]
pub struct ResolvePermit {
    host: Host,
    port: u16,
}

impl ResolvePermit {
    pub(super) fn mint(flow: &Flow) -> Self {
        Self {
            host: flow.host().clone(),
            port: flow.port(),
        }
    }

    /// The host that may be resolved.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port to combine with the addresses that the host resolves to.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The addresses of a flow's host, while the chain judges them. An addon can only remove addresses.
///
/// ```compile_fail,E0423
/// use addons::contract::Addresses;
/// use std::net::SocketAddr;
///
/// fn add(addresses: &mut Addresses, another: SocketAddr) {
///     *addresses = Addresses(vec![another]);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Addresses(Vec<SocketAddr>);

impl Addresses {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(addresses)
    }

    #[cfg(test)]
    pub(crate) fn for_test(addresses: Vec<SocketAddr>) -> Self {
        Self(addresses)
    }

    /// The addresses that are left, in the order to try them.
    pub fn as_slice(&self) -> &[SocketAddr] {
        &self.0
    }

    /// Removes the addresses for which `keep` is false.
    pub fn retain(&mut self, keep: impl FnMut(&SocketAddr) -> bool) {
        self.0.retain(keep);
    }
}

/// Permission to connect to exactly these addresses, for one principal.
///
/// Only the chain's `dial` phase mints a permit. The dialer, the only code that opens TCP
/// connections to upstreams, requires one, so code that forgets the check does not compile.
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
    /// Called by the chain after every addon has judged the addresses. `None` if no address is
    /// left, or if the flow has no principal.
    pub(super) fn mint(flow: &Flow, addresses: Addresses) -> Option<Self> {
        let principal = flow.principal.clone()?;
        (!addresses.0.is_empty()).then(|| Self {
            host: flow.host().clone(),
            addresses: addresses.0,
            principal,
        })
    }

    /// The host that the addresses belong to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The addresses that were judged, in the order to try them. Never empty.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The principal on whose behalf the connection is made.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }
}
