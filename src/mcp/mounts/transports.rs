//! The transport of each kind of server.

use std::sync::Arc;

use addons::contract::BoxFuture;
use addons::mcp::{Confine, ServerKind, ServerSettings, StdioSettings};

use super::http::{HttpParts, HttpTransport};
use super::process::{E2b, Local, Machine, ProcessManager, Runtime, Spawner};
use super::stdio::{StdioPorts, StdioTransport};
use super::{Transport, Transports};

/// Makes all of them.
pub struct ServerTransports {
    /// What stdio servers share.
    pub stdio: Arc<StdioPorts>,
    /// Starts local processes.
    pub spawner: Spawner,
    /// What they see.
    pub machine: Arc<Machine>,
    /// What servers over HTTP share.
    pub http: HttpParts,
}

impl Transports for ServerTransports {
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport> {
        match &server.kind {
            ServerKind::Http(settings) => {
                Arc::new(HttpTransport::new(self.http.clone(), server, settings))
            }
            ServerKind::Stdio(settings) => {
                let (spawner, machine) = (self.spawner.clone(), Arc::clone(&self.machine));
                let make = move || Arc::new(Local::new(&spawner, &machine)) as _;
                self.process(server, settings.clone(), Runtime::Local, make)
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
                self.process(server, settings, Runtime::E2b, || Arc::new(E2b) as _)
            }
        }
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.http.tasks.close();
            tokio::join!(self.stdio.children.settled(), self.http.tasks.wait());
        })
    }
}

impl ServerTransports {
    fn process(
        &self,
        server: &Arc<ServerSettings>,
        settings: StdioSettings,
        runtime: Runtime,
        make: impl Fn() -> Arc<dyn ProcessManager> + Send + Sync + 'static,
    ) -> Arc<dyn Transport> {
        self.stdio.children.name_server(&server.name, runtime);
        let make = Box::new(make);
        Arc::new(StdioTransport::new(&self.stdio, server, settings, make))
    }
}
