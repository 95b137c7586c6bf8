//! Who sends a flow, and on whose behalf it runs.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use super::container::{Container, Source};
use super::host::Host;

/// Who is at the other end of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// What identifies it; `None` where the socket tells no address.
    pub source: Option<Source>,
    /// Its address, for the log.
    pub peer: Option<SocketAddr>,
}

/// Shared handle to a lease, one for each client connection. The flows of a connection count their
/// references here; the count of the container itself would move from core to core.
#[derive(Debug)]
pub struct LeaseHandle(Arc<Container>);

impl Deref for LeaseHandle {
    type Target = Arc<Container>;

    fn deref(&self) -> &Arc<Container> {
        &self.0
    }
}

/// On whose behalf a flow runs.
#[derive(Clone, Debug)]
pub enum Principal {
    /// A container, under one lease.
    Container(Arc<LeaseHandle>),
    /// A named part of the appliance itself.
    System(Arc<System>),
    /// A part of the appliance that works for one container: an MCP server that is mounted for it.
    Delegated(Arc<Delegation>),
}

impl Principal {
    /// The lease whose limits, credentials and audit apply.
    pub fn lease(&self) -> Option<&Arc<LeaseHandle>> {
        match self {
            Self::Container(lease) => Some(lease),
            Self::Delegated(delegation) => Some(&delegation.lease),
            Self::System(_) => None,
        }
    }

    /// The list of hosts that takes the place of the container's allowlist, if there is one.
    pub fn own_hosts(&self) -> Option<&System> {
        match self {
            Self::Container(_) => None,
            Self::Delegated(delegation) => Some(&delegation.system),
            Self::System(system) => Some(system),
        }
    }
}

impl From<Arc<Container>> for Principal {
    fn from(container: Arc<Container>) -> Self {
        Self::Container(Arc::new(LeaseHandle(container)))
    }
}

/// A part of the appliance that speaks for itself, and where it may go: no allowlist holds for
/// it, so its own list does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name, in the audit.
    pub name: Cow<'static, str>,
    /// The hosts and ports that it may ask.
    pub hosts: Vec<(Host, u16)>,
    /// They are the operator's own: spoken to in clear where the operator says so, and at
    /// private addresses too. All others only over verified TLS and at public ones.
    pub trust_private: bool,
}

/// A part of the appliance that works for one container. Its flows are the container's: limits,
/// credentials, audit and the lease's end hold. Only the hosts are its own.
#[derive(Debug)]
pub struct Delegation {
    /// Its name, and where it may go.
    pub system: System,
    /// The lease that it works for.
    pub lease: Arc<LeaseHandle>,
}

impl Delegation {
    /// Lets `system` work for a container.
    #[must_use]
    pub fn new(system: System, container: Arc<Container>) -> Self {
        Self {
            system,
            lease: Arc::new(LeaseHandle(container)),
        }
    }
}
