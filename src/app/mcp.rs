//! The MCP gateway: its servers, what routes to them, and the front.

use std::io;
use std::path::Path;
use std::sync::Arc;

use addons::contract::{BoxFuture, Delegation};
use addons::mcp::{Confine, ServerKind, ServerSettings, StdioSettings};
use prometheus::Registry;
use tokio_util::task::TaskTracker;

use super::failure::Failure;
use super::operator::Operator;
use super::ours;
use crate::config::Config;
use crate::http::Service;
use crate::mcp::{
    Children, Core, DefinitionFile, Dropped, E2b, Gateway, GatewayMetrics, HttpParts,
    HttpTransport, Local, Machine, MakeProcess, MessageLimits, MountPorts, Mounts, OpenWayOut,
    PinnedDefinitions, Rules, Spawner, StdioPorts, StdioTransport, Transport, Transports, WayOut,
};

/// Builds the gateway over the servers of a configuration, and what operators reach of it.
pub fn gateway(
    service: &Arc<Service>,
    config: &Config,
    metrics: &Registry,
) -> Result<(Arc<Gateway>, Operator), Failure> {
    let definitions = DefinitionFile::open(&config.proxy.data_dir);
    let snapshots = Arc::clone(&service.snapshots);
    let current = Arc::clone(&snapshots);
    let ports = MountPorts {
        chain: Arc::new(move || Some(Arc::clone(current.current().chain()))),
        definitions: Arc::new(PinnedDefinitions(Arc::clone(&definitions))),
        transports: Arc::new(AllTransports::new(service, config, metrics)?),
    };
    let mounts = Arc::new(Mounts::new(ports, &config.addons.mcp.servers));
    let rules = move || {
        let snapshot = snapshots.current();
        Rules {
            chain: Arc::clone(snapshot.chain()),
            settings: Arc::clone(&snapshot.config.addons.mcp),
        }
    };
    let core = Core::new(Box::new(rules), mounts);
    let metrics = GatewayMetrics::new(metrics).map_err(ours)?;
    let operator = Operator {
        core: Arc::clone(&core),
        definitions,
    };
    Ok((Arc::new(Gateway::new(Arc::new(core), metrics)), operator))
}

/// Makes the transport of each server by its kind.
struct AllTransports {
    service: Arc<Service>,
    dropped: Dropped,
    farewells: TaskTracker,
    stdio: Arc<StdioPorts>,
    spawner: Spawner,
    machine: Arc<Machine>,
}

impl AllTransports {
    fn new(service: &Arc<Service>, config: &Config, metrics: &Registry) -> Result<Self, Failure> {
        let children = Children::new(metrics).map_err(ours)?;
        let snapshots = Arc::clone(&service.snapshots);
        let limits = move || {
            let limits = &snapshots.current().config.proxy.limits;
            MessageLimits {
                bytes: limits.inspect_body_bytes,
                values: limits.inspect_values,
            }
        };
        let stdio = StdioPorts {
            children,
            way_out: Arc::new(NoWayOut),
            limits: Arc::new(limits),
        };
        let proxy = &config.proxy;
        let sockets = proxy.listen.admin.parent().unwrap_or(Path::new("."));
        let hidden = vec![sockets.to_owned(), proxy.data_dir.clone()];
        let program = std::env::current_exe().map_err(ours)?;
        Ok(Self {
            service: Arc::clone(service),
            dropped: Dropped::new(metrics).map_err(ours)?,
            farewells: TaskTracker::new(),
            stdio: Arc::new(stdio),
            spawner: Spawner::start(program).map_err(ours)?,
            machine: Arc::new(Machine::new(proxy.certs_dir.clone(), hidden)),
        })
    }

    fn stdio(
        &self,
        server: &Arc<ServerSettings>,
        settings: StdioSettings,
        make: MakeProcess,
    ) -> Arc<dyn Transport> {
        Arc::new(StdioTransport::new(&self.stdio, server, settings, make))
    }
}

impl Transports for AllTransports {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        match &server.kind {
            ServerKind::Http(settings) => {
                let parts = HttpParts {
                    service: Arc::clone(&self.service),
                    dropped: self.dropped.clone(),
                    tasks: self.farewells.clone(),
                };
                Arc::new(HttpTransport::new(parts, server, settings))
            }
            ServerKind::Stdio(settings) => {
                let (spawner, machine) = (self.spawner.clone(), Arc::clone(&self.machine));
                let make = move || Arc::new(Local::new(&spawner, &machine)) as _;
                self.stdio(server, settings.clone(), Box::new(make))
            }
            ServerKind::E2b(settings) => {
                let settings = StdioSettings {
                    command: settings.command.clone(),
                    env: Vec::new(),
                    work_dir: None,
                    hosts: Vec::new(),
                    read: Vec::new(),
                    write: Vec::new(),
                    confine: Confine::Namespaces,
                };
                self.stdio(server, settings, Box::new(|| Arc::new(E2b)))
            }
        }
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.farewells.close();
            tokio::join!(self.farewells.wait(), self.stdio.children.settled());
        })
    }
}

/// Children reach nothing.
struct NoWayOut;

impl WayOut for NoWayOut {
    fn open(&self, _delegation: Arc<Delegation>) -> io::Result<OpenWayOut> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
