//! A request to one server, before it is made.

use std::sync::Arc;

use addons::contract::Definition;
use addons::mcp::ServerSettings;
use serde_json::value::RawValue;

use super::params::Change;
use super::{Caller, Events, Mount, Pooled};

/// The server that a request goes to, and what it is about there.
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
    pub caller: &'a Arc<Caller>,
    pub target: &'a Target,
    pub method: &'a Arc<str>,
    /// As the client wrote them.
    pub params: Option<&'a RawValue>,
    /// What is changed in them.
    pub changes: &'a [Change<'a>],
    pub events: &'a Events,
}

impl Target {
    /// A session, to tell its server something on the gateway's own account.
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
