//! The destination of a request.

use std::sync::Arc;

use addons::contract::Definition;
use addons::mcp::ServerSettings;

use super::params::Change;
use super::{ClientRequest, Mount, Pooled};

/// The server, the session and the object that a request addresses.
#[derive(Clone)]
pub(super) struct Target {
    pub mount: Arc<Mount>,
    pub settings: Arc<ServerSettings>,
    pub pooled: Arc<Pooled>,
    /// The tool or prompt by the server's own name, or the URI of a resource.
    pub name: Option<Arc<str>>,
    pub definition: Option<Arc<Definition>>,
}

/// A request to a server.
pub(super) struct Ask<'a> {
    pub request: &'a ClientRequest,
    pub target: &'a Target,
    /// Changes to the client's params.
    pub changes: &'a [Change<'a>],
}

impl Target {
    /// A target for a request of the gateway itself in a session.
    pub fn of_session(mount: &Arc<Mount>, pooled: &Arc<Pooled>) -> Self {
        Self {
            settings: mount.settings(),
            mount: Arc::clone(mount),
            pooled: Arc::clone(pooled),
            name: None,
            definition: None,
        }
    }
}
