//! Reads `policies.servers`: the gateway's own servers, through which agents read and propose
//! policies, and people decide.

use std::sync::Arc;
use std::time::Duration;

use super::servers::Servers;
use super::{PoliciesSettings, Scope, ServerKind, ServerSettings};
use crate::contract::settings::Fields;

/// Time that a call of `loop_yield_turn` may take beyond `approvals.wait`.
const MARGIN: Duration = Duration::from_secs(15);

/// A server of the gateway itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyServer {
    /// The policy in force, for agents and people.
    Reader {
        /// Whether the tool `decide` is listed: `policies.expose_decide`.
        decides: bool,
    },
    /// Decides questions and sets the policy; for people only, so that no container sees it.
    Approver,
    /// Proposes policies; for agents only.
    Proposer,
    /// Waits for people's decisions; for agents only.
    Loop,
}

impl PolicyServer {
    /// The name under which the server is mounted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader { .. } => "policy_reader",
            Self::Approver => "policy_approver",
            Self::Proposer => "policy_proposer",
            Self::Loop => "loop",
        }
    }

    /// Whether containers see the server.
    pub const fn is_for_agents(self) -> bool {
        !matches!(self, Self::Approver)
    }

    /// Whether people see the server.
    pub const fn is_for_people(self) -> bool {
        matches!(self, Self::Reader { .. } | Self::Approver)
    }
}

/// Reads the list of mounted servers.
pub(super) fn read(fields: &Fields<'_>) -> Vec<PolicyServer> {
    let decides = fields.or("expose_decide", false, |at| at.boolean());
    let known = [
        PolicyServer::Reader { decides },
        PolicyServer::Approver,
        PolicyServer::Proposer,
        PolicyServer::Loop,
    ];
    let known = known.map(|server| (server.name(), server));
    let mut servers = Vec::new();
    fields.list("servers", |at| {
        let server = at.one_of(&known)?;
        match servers.contains(&server) {
            true => at.refuse("the list has this server already"),
            false => servers.push(server),
        }
        Some(())
    });
    servers
}

/// Adds the servers that containers see to those of the file. `wait` is `approvals.wait`.
pub(super) fn mount(
    fields: &Fields<'_>,
    policies: &PoliciesSettings,
    wait: Duration,
    servers: &mut Servers,
) {
    let Some(at) = fields.find("policies") else {
        return;
    };
    let for_agents = policies
        .servers
        .iter()
        .filter(|server| server.is_for_agents());
    for server in for_agents {
        let mut mounted = servers.values().flatten();
        if let Some(sole) = mounted.find(|other| other.prefix.is_empty()) {
            let message = format!(
                "{} has an empty prefix, which is allowed only for a sole server, and \
                 policies.servers mounts others: remove the prefix",
                sole.name
            );
            fields.refuse("mcpServers", message);
            return;
        }
        let name: Arc<str> = server.name().into();
        let settings = ServerSettings {
            prefix: format!("{name}_").into(),
            kind: ServerKind::Policy(*server),
            timeout: wait.saturating_add(MARGIN),
            containers: vec!["*".into()],
            scope: Scope::Container,
            classification: None,
            resources: Vec::new(),
            prompts: Vec::new(),
            place: at.place(),
            name: Arc::clone(&name),
        };
        servers.insert(name, Some(settings));
    }
}
