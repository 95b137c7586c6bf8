//! Servers that are child processes: messages are lines of their standard streams.

mod calls;
mod incoming;
mod opening;
mod server_requests;
mod session;
mod shared;
mod waiting;
mod writer;

use std::sync::Arc;

use addons::contract::{BoxFuture, Container, Delegation, Denial, System};
use addons::mcp::{Confine, ServerSettings, StdioSettings};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::egress::{Egress, EgressListener};
use super::process::{Children, ProcessConfig, ProcessManager, Program};
use super::{Era, MountError, MountSession, OpenMemory, Opening, Transport};
use waiting::Waiting;

/// Bounds of messages in the configuration in force.
#[derive(Clone, Copy, Debug)]
pub struct MessageLimits {
    /// The longest message, in bytes: `limits.inspect_body_bytes`.
    pub bytes: usize,
    /// The most JSON values of one message: `limits.inspect_values`.
    pub values: usize,
}

/// Returns the limits in force.
pub type CurrentLimits = Arc<dyn Fn() -> MessageLimits + Send + Sync>;

/// Creates a manager for one process.
pub type MakeProcess = Box<dyn Fn() -> Arc<dyn ProcessManager> + Send + Sync>;

/// Parts that stdio transports share.
pub struct StdioPorts {
    /// Counts and limits children.
    pub children: Children,
    /// Opens the listeners through which children reach the network.
    pub egress: Arc<dyn Egress>,
    /// Bounds messages.
    pub limits: CurrentLimits,
    /// Opens the memory that messages are charged to.
    pub memory: OpenMemory,
}

/// Opens sessions, each with a separate process.
pub struct StdioTransport {
    ports: Arc<StdioPorts>,
    server: Arc<ServerSettings>,
    settings: StdioSettings,
    make: MakeProcess,
    /// The newest era that the server supports, once known. A legacy client's legacy session does
    /// not reveal it, since a modern server may support the legacy era as well.
    era: Mutex<Option<Era>>,
    /// Processes that no client has used yet.
    waiting: Waiting,
}

impl StdioTransport {
    /// Creates a transport that starts the command of `settings` with managers from `make`.
    pub fn new(
        ports: &Arc<StdioPorts>,
        server: &Arc<ServerSettings>,
        settings: StdioSettings,
        make: MakeProcess,
    ) -> Self {
        if settings.confine == Confine::None {
            tracing::warn!(
                server = %server.name,
                "confine: none lets an MCP server do everything that the proxy can do"
            );
        }
        Self {
            ports: Arc::clone(ports),
            server: Arc::clone(server),
            settings,
            make,
            era: Mutex::new(None),
            waiting: Waiting::default(),
        }
    }

    /// Opens the listener through which a confined process reaches its hosts; `None` if the process
    /// is unconfined or has no hosts.
    fn egress(
        &self,
        container: Option<&Arc<Container>>,
    ) -> Result<Option<EgressListener>, MountError> {
        let settings = &self.settings;
        if settings.confine == Confine::None || settings.hosts.is_empty() {
            return Ok(None);
        }
        let Some(container) = container else {
            let why = "hosts need scope: container, since the server's connections are traffic of \
                       a container";
            return Err(MountError::CannotStart(why.to_owned()));
        };
        let delegation = Arc::new(Delegation::new(self.system(), Arc::clone(container)));
        let opened = self.ports.egress.open(delegation);
        let failed =
            |error| MountError::CannotStart(format!("cannot open a socket for its hosts: {error}"));
        opened.map(Some).map_err(failed)
    }

    /// The name of the server's flows, and the hosts that the server may reach.
    fn system(&self) -> System {
        System {
            name: format!("mcp:{}", self.server.name).into(),
            hosts: self.settings.hosts.clone(),
            trust_private: false,
            url_secrets: Default::default(),
        }
    }

    fn config(
        &self,
        container: Option<&Arc<Container>>,
        egress: Option<&EgressListener>,
    ) -> Result<ProcessConfig, MountError> {
        let settings = &self.settings;
        let (command, env) = (settings.command.iter(), settings.env.iter());
        let memory = (self.ports.memory)(self.system(), container);
        Ok(ProcessConfig {
            server: self.server.name.to_string(),
            program: Program {
                command: command.map(|word| word.0.to_string()).collect(),
                env: env
                    .map(|(name, value)| (name.clone(), value.0.clone()))
                    .collect(),
                work_dir: settings.work_dir.clone(),
                read: settings.read.clone(),
                write: settings.write.clone(),
                confine: settings.confine,
                unix_sockets: settings.unix_sockets,
                knows_proxy: true,
                limits: None,
            },
            secrets: settings.expanded.iter().map(|one| one.0.clone()).collect(),
            egress: egress.map(|egress| egress.path.clone()),
            longest_line: (self.ports.limits)().bytes,
            memory: memory.ok_or_else(|| MountError::Denied(Denial::internal()))?,
        })
    }
}

impl Transport for StdioTransport {
    fn open<'a>(
        &'a self,
        opening: Opening,
    ) -> BoxFuture<'a, Result<Arc<dyn MountSession>, MountError>> {
        Box::pin(async move {
            let session: Arc<dyn MountSession> = self.open_session(opening).await?;
            Ok(session)
        })
    }

    fn prepare(
        self: Arc<Self>,
        container: Arc<Container>,
        retired: CancellationToken,
    ) -> BoxFuture<'static, bool> {
        match self.settings.eager {
            true => Box::pin(self.launch_early(container, retired)),
            false => Box::pin(std::future::ready(false)),
        }
    }
}
