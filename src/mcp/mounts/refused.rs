//! The hosts that were refused to the process of a server.

use std::collections::BTreeSet;

use addons::contract::{Container, RefusedHosts};
use addons::mcp::{Confine, ServerKind, ServerSettings};

use super::ports::system;

/// The hosts that were refused to a server's processes of a container, as `hosts` in `mcp.yaml` would
/// name them. Leaves out hosts that the server may reach by now.
pub fn refused_hosts(container: &Container, server: &ServerSettings) -> Vec<String> {
    let ServerKind::Stdio(process) = &server.kind else {
        return Vec::new();
    };
    let refused = container.state_or_init(RefusedHosts::default);
    let refused = refused.of(&system(&server.name).name).into_iter();
    let named = refused.filter_map(|(host, port)| {
        let mut listed = process.hosts.iter().filter(|(listed, _)| *listed == host);
        match port {
            Some(80) => Some(format!("http://{host} (only https is permitted)")),
            Some(port) if listed.all(|(_, listed)| *listed != port) => Some(match port {
                443 => host.to_string(),
                port => format!("{host}:{port}"),
            }),
            None if listed.next().is_none() => Some(host.to_string()),
            _ => None,
        }
    });
    named.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether a server's process has no network at all.
pub fn has_no_network(server: &ServerSettings) -> bool {
    match &server.kind {
        ServerKind::Stdio(process) => process.confine != Confine::None && process.hosts.is_empty(),
        _ => false,
    }
}
