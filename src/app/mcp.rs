//! The MCP gateway: its servers, what routes to them, and the front.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use addons::contract::Delegation;
use addons::mcp::McpMetrics;
use prometheus::Registry;
use tokio_util::task::TaskTracker;

use super::failure::Failure;
use super::operator::Operator;
use super::ours;
use super::way_out::WaysOut;
use crate::config::Config;
use crate::http::Service;
use crate::ingress::Engine;
use crate::mcp::{
    Children, Core, DefinitionFile, Dropped, Gateway, GatewayMetrics, HttpParts, Machine,
    MessageLimits, MountPorts, Mounts, OpenWayOut, PinnedDefinitions, Rules, ServerTransports,
    Spawner, StdioPorts, WayOut,
};

/// The gateway, and what else of it the appliance has to do with.
pub struct McpParts {
    pub gateway: Arc<Gateway>,
    /// What operators reach of it.
    pub operator: Operator,
    /// Its servers.
    pub mounts: Arc<Mounts>,
    /// Leads nowhere until the engine is there.
    pub ways_out: Arc<LateWaysOut>,
}

/// Builds the gateway over the servers of a configuration.
pub fn build(
    service: &Arc<Service>,
    config: &Config,
    metrics: &Registry,
) -> Result<McpParts, Failure> {
    let definitions = DefinitionFile::open(&config.proxy.data_dir);
    let snapshots = Arc::clone(&service.snapshots);
    let current = Arc::clone(&snapshots);
    let ways_out = Arc::<LateWaysOut>::default();
    let ports = MountPorts {
        chain: Arc::new(move || Some(Arc::clone(current.current().chain()))),
        definitions: Arc::new(PinnedDefinitions(Arc::clone(&definitions))),
        transports: Arc::new(transports(service, config, metrics, &ways_out)?),
    };
    let mounts = Arc::new(Mounts::new(ports, &config.addons.mcp.servers));
    let rules = move || {
        let snapshot = snapshots.current();
        Rules {
            chain: Arc::clone(snapshot.chain()),
            settings: Arc::clone(&snapshot.config.addons.mcp),
        }
    };
    let executions = McpMetrics::new(metrics).map_err(ours)?;
    let core = Core::new(Box::new(rules), Arc::clone(&mounts), executions);
    let metrics = GatewayMetrics::new(metrics).map_err(ours)?;
    Ok(McpParts {
        gateway: Arc::new(Gateway::new(Arc::new(Arc::clone(&core)), metrics)),
        operator: Operator { core, definitions },
        mounts,
        ways_out,
    })
}

/// Makes the transport of each server by its kind.
fn transports(
    service: &Arc<Service>,
    config: &Config,
    metrics: &Registry,
    ways_out: &Arc<LateWaysOut>,
) -> Result<ServerTransports, Failure> {
    let snapshots = Arc::clone(&service.snapshots);
    let limits = move || {
        let limits = &snapshots.current().config.proxy.limits;
        MessageLimits {
            bytes: limits.inspect_body_bytes,
            values: limits.inspect_values,
        }
    };
    let stdio = StdioPorts {
        children: Children::new(metrics).map_err(ours)?,
        way_out: Arc::clone(ways_out) as _,
        limits: Arc::new(limits),
    };
    let proxy = &config.proxy;
    let hidden = vec![sockets(config), proxy.data_dir.clone()];
    let program = std::env::current_exe().map_err(ours)?;
    Ok(ServerTransports {
        stdio: Arc::new(stdio),
        spawner: Spawner::start(program).map_err(ours)?,
        machine: Arc::new(Machine::new(proxy.certs_dir.clone(), hidden)),
        http: HttpParts {
            service: Arc::clone(service),
            dropped: Dropped::new(metrics).map_err(ours)?,
            tasks: TaskTracker::new(),
        },
    })
}

/// Where Unix listeners are.
fn sockets(config: &Config) -> PathBuf {
    let admin = config.proxy.listen.admin.parent();
    admin.unwrap_or(Path::new(".")).to_owned()
}

/// Ways out of children's namespaces, once there is an engine that serves them.
#[derive(Default)]
pub struct LateWaysOut(OnceLock<WaysOut>);

impl LateWaysOut {
    /// Has `engine` serve them from now on. To be called in the runtime that serves.
    pub fn lead_to(&self, engine: &Arc<Engine>, config: &Config) {
        // A second call would name the same engine.
        let _ = self
            .0
            .set(WaysOut::new(Arc::clone(engine), sockets(config)));
    }
}

impl WayOut for LateWaysOut {
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<OpenWayOut> {
        let ways_out = self.0.get();
        let ways_out = ways_out.ok_or_else(|| io::Error::other("the proxy is still starting"))?;
        ways_out.open(delegation)
    }
}
