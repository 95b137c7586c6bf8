//! Builds the MCP gateway: its servers, the core that routes to them, and the front end.

use std::path::Path;
use std::sync::Arc;

use addons::mcp::McpMetrics;
use prometheus::Registry;
use tokio_util::task::TaskTracker;

use super::egress::EgressListeners;
use super::failure::Failure;
use super::internal;
use super::listeners::socket_directory;
use super::operator::Operator;
use crate::config::Config;
use crate::http::{OwnClient, Service};
use crate::mcp::{
    Children, Core, DefinitionFile, Dropped, DryRuns, Gateway, GatewayMetrics, HttpParts, Machine,
    MessageLimits, MessageMemory, MountPorts, Mounts, OpenMemory, People, PinnedDefinitions,
    PolicyDesk, Rules, ServerTransports, Spawner, StdioPorts,
};
use crate::registry;

/// Builds the gateway for the servers of a configuration, and its interface for operators.
/// `definitions` are the accepted ones of tools. The spawner starts child processes, which see the
/// machine.
pub fn gateway(
    service: &Arc<Service>,
    config: &Config,
    definitions: Arc<DefinitionFile>,
    (spawner, machine): (Spawner, Arc<Machine>),
    (egress, registry): (Arc<EgressListeners>, Arc<registry::Registry>),
    policies: Arc<PolicyDesk>,
    metrics: &Registry,
) -> Result<(Arc<Gateway>, Operator), Failure> {
    let counters = McpMetrics::new(metrics).map_err(internal)?;
    let snapshots = Arc::clone(&service.snapshots);
    let current = Arc::clone(&snapshots);
    let ports = MountPorts {
        chain: Arc::new(move || Some(Arc::clone(current.current().chain()))),
        definitions: Arc::new(PinnedDefinitions {
            file: Arc::clone(&definitions),
            metrics: counters.clone(),
        }),
        transports: Arc::new(ServerTransports {
            stdio: Arc::new(stdio(service, egress, metrics)?),
            spawner,
            machine,
            http: HttpParts {
                service: Arc::clone(service),
                dropped: Dropped::new(metrics).map_err(internal)?,
                tasks: TaskTracker::new(),
            },
            policies: Arc::clone(&policies),
            metrics: counters.clone(),
        }),
        memory: memory(service),
    };
    let mounts = Arc::new(Mounts::new(ports, &config.addons.mcp.servers));
    let rules = move || {
        let snapshot = snapshots.current();
        Rules {
            chain: Arc::clone(snapshot.chain()),
            settings: Arc::clone(&snapshot.config.addons.mcp),
            policies_loaded: snapshot.unloaded_policies.is_empty(),
        }
    };
    let core = Core::new(Box::new(rules), mounts, counters);
    policies.advise_with(Arc::new(DryRuns::new(&core)));
    let people = People::new(&policies);
    let metrics = GatewayMetrics::new(metrics).map_err(internal)?;
    let operator = Operator {
        core: Arc::clone(&core),
        definitions,
        people: Arc::clone(&people),
    };
    Ok((
        Arc::new(Gateway::new(core, people, metrics, registry)),
        operator,
    ))
}

/// Builds the parts that servers on standard streams share.
fn stdio(
    service: &Arc<Service>,
    egress: Arc<EgressListeners>,
    metrics: &Registry,
) -> Result<StdioPorts, Failure> {
    let snapshots = Arc::clone(&service.snapshots);
    let limits = move || {
        let limits = &snapshots.current().config.proxy.limits;
        MessageLimits {
            bytes: limits.inspect_body_bytes,
            values: limits.inspect_values,
        }
    };
    Ok(StdioPorts {
        children: Children::new(metrics).map_err(internal)?,
        egress,
        limits: Arc::new(limits),
        memory: memory(service),
    })
}

/// The file system of servers and policies that run as child processes. It lacks `files` (the
/// directory of the configuration files), the data directory and the sockets.
pub fn machine(config: &Config, files: &Path) -> Machine {
    let proxy = &config.proxy;
    let hidden = vec![
        socket_directory(&proxy.listen).to_owned(),
        proxy.data_dir.clone(),
        files.to_owned(),
    ];
    Machine::new(proxy.certs_dir.clone(), hidden)
}

/// Charges a server's messages to the server's container. A server that all containers share has no
/// container, so its messages are charged to an account of that server.
fn memory(service: &Arc<Service>) -> OpenMemory {
    let service = Arc::clone(service);
    Arc::new(move |system, container| {
        let client = OwnClient::of(&service, system, container)?;
        Some(Arc::new(client) as Arc<dyn MessageMemory>)
    })
}
