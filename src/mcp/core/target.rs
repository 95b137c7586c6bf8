//! The server and the object that a request addresses.

use std::sync::Arc;

use addons::contract::{Definition, McpTarget};
use addons::mcp::ServerSettings;

use super::{Mount, Pooled};

/// The server, the session and the object that a request addresses.
#[derive(Clone)]
pub(super) struct Target {
    pub mount: Arc<Mount>,
    pub settings: Arc<ServerSettings>,
    pub pooled: Arc<Pooled>,
    /// The tool or prompt by the server's own name, or the URI of a resource.
    pub name: Option<Arc<str>>,
    /// The definition of the called tool.
    pub definition: Option<Arc<Definition>>,
}

impl Target {
    /// The server of a session, without an object.
    pub fn of_session(mount: &Arc<Mount>, pooled: &Arc<Pooled>) -> Self {
        Self {
            settings: mount.settings(),
            mount: Arc::clone(mount),
            pooled: Arc::clone(pooled),
            name: None,
            definition: None,
        }
    }

    /// The target of the request's messages, as the chain judges them.
    pub fn judged(&self) -> McpTarget {
        McpTarget::of(&self.settings.name, self.definition.as_deref())
    }
}
