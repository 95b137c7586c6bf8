//! Creates the transport of each kind of server.

use std::sync::Arc;

use addons::contract::BoxFuture;
use addons::mcp::{Confine, E2bSettings, McpMetrics, ServerKind, ServerSettings, StdioSettings};

use super::coding::CodingTransport;
use super::http::{HttpParts, HttpTransport};
use super::policy::{PolicyDesk, PolicyTransport};
use super::process::{E2b, Local, Machine, ProcessManager, Runtime, Spawner};
use super::stdio::{StdioPorts, StdioTransport};
use super::{Transport, Transports};

/// Creates the transports of all kinds of servers.
pub struct ServerTransports {
    /// Parts that stdio servers share.
    pub stdio: Arc<StdioPorts>,
    /// Starts local processes.
    pub spawner: Spawner,
    /// The file system that local processes see.
    pub machine: Arc<Machine>,
    /// Parts that servers over HTTP share.
    pub http: HttpParts,
    /// Parts that the policy servers share.
    pub policies: Arc<PolicyDesk>,
    /// Counts changed definitions of tools. Creating a server's transport also creates the server's
    /// time series, with the value 0.
    pub metrics: McpMetrics,
}

/// Creates a process manager: [`Local`] for a stdio server, [`E2b`] for an e2b server. `None` for
/// HTTP servers and coding sidecars, whose processes the gateway does not start, and for the gateway's
/// own servers.
pub fn process_manager(
    kind: &ServerKind,
    spawner: &Spawner,
    machine: &Arc<Machine>,
) -> Option<Arc<dyn ProcessManager>> {
    match kind {
        ServerKind::Http(_) | ServerKind::CodingSidecar(_) | ServerKind::Policy(_) => None,
        ServerKind::Stdio(_) => Some(Arc::new(Local::new(spawner, machine))),
        ServerKind::E2b(_) => Some(Arc::new(E2b)),
    }
}

impl Transports for ServerTransports {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        self.metrics.name_server(&server.name);
        let (settings, runtime) = match &server.kind {
            ServerKind::Http(settings) => {
                return Arc::new(HttpTransport::new(self.http.clone(), server, settings));
            }
            ServerKind::CodingSidecar(settings) => {
                let service = &self.http.service;
                return Arc::new(CodingTransport::new(service, server, settings));
            }
            ServerKind::Policy(policy) => {
                return Arc::new(PolicyTransport::new(&self.policies, *policy));
            }
            ServerKind::Stdio(settings) => (settings.clone(), Runtime::Local),
            ServerKind::E2b(settings) => (of_e2b(settings), Runtime::E2b),
        };
        self.stdio.children.name_server(&server.name, runtime);
        let (kind, spawner) = (server.kind.clone(), self.spawner.clone());
        let machine = Arc::clone(&self.machine);
        let make =
            move || process_manager(&kind, &spawner, &machine).unwrap_or_else(|| Arc::new(E2b));
        Arc::new(StdioTransport::new(
            &self.stdio,
            server,
            settings,
            Box::new(make),
        ))
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.http.tasks.close();
            tokio::join!(self.stdio.children.settled(), self.http.tasks.wait());
        })
    }
}

/// Settings for [`StdioTransport`] with the command of an e2b server. [`E2b`] refuses to start the
/// process. The values other than the command make sure that the transport logs no warning and
/// opens no listener before that.
fn of_e2b(settings: &E2bSettings) -> StdioSettings {
    StdioSettings {
        command: settings.command.clone(),
        env: Vec::new(),
        expanded: Vec::new(),
        work_dir: None,
        hosts: Vec::new(),
        read: Vec::new(),
        write: Vec::new(),
        confine: Confine::Namespaces,
        unix_sockets: false,
        eager: false,
    }
}
