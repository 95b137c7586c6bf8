//! The receivers and senders of MCP messages.

use std::sync::Arc;

use super::definition::Definition;

/// The receiver of a client's message; for a server's message, its sender. A response has the target
/// of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpTarget {
    /// The gateway, which answers the message itself. The addon `mcp` denies every method that
    /// the gateway does not answer.
    Gateway,
    /// None: the gateway refuses the request whatever the verdict, since its method is unknown or it
    /// exceeds a limit of the gateway. The chain counts and records it.
    Refused,
    /// A server: a message that calls no tool.
    Server(Arc<str>),
    /// A tool of a server: a `tools/call`.
    Tool {
        /// The server.
        server: Arc<str>,
        /// The server's own name for the tool.
        name: Arc<str>,
    },
}

impl McpTarget {
    /// The tool with this definition; without a definition, the server.
    #[must_use]
    pub fn of(server: &Arc<str>, definition: Option<&Definition>) -> Self {
        let server = Arc::clone(server);
        match definition {
            Some(definition) => Self::Tool {
                server,
                name: Arc::clone(&definition.name),
            },
            None => Self::Server(server),
        }
    }

    /// The server; `None` if the message goes to no server.
    pub fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::Gateway | Self::Refused => None,
            Self::Server(server) | Self::Tool { server, .. } => Some(server),
        }
    }
}
