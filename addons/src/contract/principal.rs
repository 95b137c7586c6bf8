//! The client that sends a flow, and the principal on whose behalf the flow runs.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use super::container::{Container, Source};
use super::host::Host;
use super::url_secrets::UrlSecrets;

/// The sender of a flow: the peer of a socket, or the appliance itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The source that identifies the container; `None` for a flow that the appliance begins
    /// itself, without a socket.
    pub source: Option<Source>,
    /// The peer's address, for the log; `None` for a flow without a socket.
    pub peer: Option<SocketAddr>,
}

/// Shared handle to a lease, normally one for each client connection. The flows of a connection
/// clone an `Arc` of its handle: if they cloned the container's `Arc`, all cores would contend for
/// one reference count.
#[derive(Debug)]
pub struct LeaseHandle(Arc<Container>);

impl Deref for LeaseHandle {
    type Target = Arc<Container>;

    fn deref(&self) -> &Arc<Container> {
        &self.0
    }
}

/// The container or the part of the appliance on whose behalf a flow runs.
#[derive(Clone, Debug)]
pub enum Principal {
    /// A container, under one lease.
    Container(Arc<LeaseHandle>),
    /// A named part of the appliance itself.
    System(Arc<System>),
    /// A part of the appliance that works for one container: the mount of an MCP server.
    Delegated(Arc<Delegation>),
}

impl Principal {
    /// The lease whose limits, credentials and audit apply; `None` for a part of the appliance that
    /// works for no container.
    pub fn lease(&self) -> Option<&Arc<LeaseHandle>> {
        match self {
            Self::Container(lease) => Some(lease),
            Self::Delegated(delegation) => Some(&delegation.lease),
            Self::System(_) => None,
        }
    }

    /// The part of the appliance whose own `hosts` replace the allowlist; `None` for a container's
    /// own flows.
    pub fn own_hosts(&self) -> Option<&System> {
        match self {
            Self::Container(_) => None,
            Self::Delegated(delegation) => Some(&delegation.system),
            Self::System(system) => Some(system),
        }
    }

    /// A path as the log and the audit show it: without the secrets in the URLs of a part of the
    /// appliance.
    pub fn printed<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match self.own_hosts() {
            Some(system) => system.url_secrets.redact(path),
            None => path.into(),
        }
    }
}

impl From<Arc<Container>> for Principal {
    fn from(container: Arc<Container>) -> Self {
        Self::Container(Arc::new(LeaseHandle(container)))
    }
}

/// A part of the appliance that sends requests. Its own list of hosts replaces the allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name, in the audit.
    pub name: Cow<'static, str>,
    /// The hosts and ports that it may reach.
    pub hosts: Vec<(Host, u16)>,
    /// Whether private addresses and clear text are permitted for these hosts. If false, only
    /// verified TLS to public addresses is permitted.
    pub trust_private: bool,
    /// The secrets in its URLs.
    pub url_secrets: UrlSecrets,
}

/// A part of the appliance that works for one container. The lease, limits, credentials and audit
/// of the container apply to the flows of this part, but its own list of hosts replaces the
/// allowlist.
#[derive(Debug)]
pub struct Delegation {
    /// Its name, and the hosts that it may reach.
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
