//! Reads `policies.servers`: the gateway's own servers, through which agents read and propose
//! policies, and people decide.

use std::sync::Arc;
use std::time::Duration;

use super::servers::Servers;
use super::{PoliciesSettings, PolicyServer, Scope, ServerKind, ServerSettings};
use crate::contract::settings::Fields;

/// Time that a call of `loop_yield_turn` may take beyond `approvals.wait`.
const MARGIN: Duration = Duration::from_secs(15);

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
