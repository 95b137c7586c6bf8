//! Ports of the mounts, and their shared state.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

use addons::contract::{BoxFuture, Chain, Container, Definitions, System};
use addons::mcp::{Scope, ServerSettings};
use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::changes::ListNews;
use super::health::HealthRecord;
use super::{Caller, Event, MessageMemory, MountSession, OpenMemory, SessionKey, Transport};

/// Returns the chain of the configuration in force; `None` before a configuration is loaded.
pub type CurrentChain = Arc<dyn Fn() -> Option<Arc<Chain>> + Send + Sync>;

/// Ports of the mounts.
pub struct MountPorts {
    /// Returns the chain that judges the requests for lists.
    pub chain: CurrentChain,
    /// Compares tools' definitions with the accepted ones, and accepts those of new tools.
    pub definitions: Arc<dyn Definitions>,
    /// Opens sessions.
    pub transports: Arc<dyn Transports>,
    /// Opens the memory that lists and waiting messages are charged to.
    pub memory: OpenMemory,
}

/// Makes the transport of each server.
pub trait Transports: Send + Sync {
    /// Creates the transport of a server.
    fn of(&self, server: &Arc<ServerSettings>) -> Arc<dyn Transport>;

    /// Waits until the processes and connections of ended sessions are gone.
    fn settled(&self) -> BoxFuture<'_, ()>;
}

/// Takes the messages of servers that belong to no request, except changes of lists.
pub trait Unsolicited: Send + Sync {
    /// Takes one message. Later messages of the session wait in a queue of
    /// [`EVENT_QUEUE`](crate::mcp::EVENT_QUEUE) until the future completes. If the queue is full, a
    /// notification is dropped and a request is answered with an error.
    fn take(self: Arc<Self>, origin: &Origin, event: Event) -> BoxFuture<'_, ()>;
}

/// The session that a message comes from.
pub struct Origin {
    /// Its server.
    pub mount: Arc<Mounted>,
    /// The lease that the session belongs to; `None` for a session that all containers share.
    pub container: Option<Arc<Container>>,
    /// What the session declares about its clients.
    pub key: SessionKey,
    /// Sends messages to the server.
    pub session: Arc<dyn MountSession>,
}

impl Origin {
    /// Whether the session was opened for clients like this one.
    pub fn serves(&self, caller: &Caller) -> bool {
        self.mount.key_of(caller) == self.key
    }
}

/// The clients that a session is opened for.
pub(super) struct Clients {
    /// The lease that the session belongs to; `None` for a session that all containers share.
    pub container: Option<Arc<Container>>,
    /// The container that first requested the session.
    pub requested_by: Weak<Container>,
    /// Announces changes of the session's lists.
    pub news: Arc<ListNews>,
    pub key: SessionKey,
}

/// State that all mounts share.
pub(super) struct Common {
    pub ports: MountPorts,
    pub unsolicited: OnceLock<Weak<dyn Unsolicited>>,
    /// Announces changes of lists to every lease.
    pub news: Arc<ListNews>,
    /// Has a permit for each process that may start at once because a lease begins.
    pub early_starts: Arc<Semaphore>,
    /// The runtime that runs sessions. The runtime of a client's connection may end before the
    /// sessions.
    pub runtime: Handle,
}

/// The state that a mount shares with its sessions.
pub struct Mounted {
    settings: ArcSwap<ServerSettings>,
    is_shared: bool,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) common: Arc<Common>,
    pub(super) record: HealthRecord,
    /// Cancelled when a reload changed or removed the server, and when `stopped` is cancelled. From
    /// then on, no session is opened. Open sessions end once the requests under way are answered,
    /// or after 10 s.
    pub(super) retired: CancellationToken,
    /// Cancelled when the sessions must end at once.
    pub(super) stopped: CancellationToken,
    /// Number of times that an operator accepted the definition of a tool. When it changes, the
    /// tools that were read before are outdated.
    pub(super) acceptances: AtomicU64,
    /// The memory that the server's lists and the messages of shared sessions are charged to;
    /// `None` after an internal error. The server has its own account, so that long lists take no
    /// memory of containers.
    pub(super) own_memory: Option<Arc<dyn MessageMemory>>,
}

impl Mounted {
    pub(super) fn new(server: &Arc<ServerSettings>, common: &Arc<Common>) -> Self {
        let stopped = CancellationToken::new();
        Self {
            settings: ArcSwap::new(Arc::clone(server)),
            is_shared: server.scope == Scope::Shared,
            transport: common.ports.transports.of(server),
            common: Arc::clone(common),
            record: HealthRecord::default(),
            retired: stopped.child_token(),
            stopped,
            acceptances: AtomicU64::new(0),
            own_memory: (common.ports.memory)(system(&server.name), None),
        }
    }

    /// The server's settings.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.settings.load_full()
    }

    /// The memory that the messages of a session are charged to; `None` after an internal error.
    pub(super) fn memory(
        &self,
        container: Option<&Arc<Container>>,
    ) -> Option<Arc<dyn MessageMemory>> {
        match container {
            Some(_) => (self.common.ports.memory)(system(&self.settings().name), container),
            None => self.own_memory.clone(),
        }
    }

    /// Whether all containers share its sessions.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The key of the session for a client.
    pub(super) fn key_of(&self, caller: &Caller) -> SessionKey {
        match self.is_shared {
            true => {
                let kind = &self.settings().kind;
                SessionKey::shared(caller.version, &caller.capabilities, kind)
            }
            false => SessionKey::of(caller),
        }
    }

    /// Replaces the settings by others that differ at most in `prefix`, in the classifications and
    /// in their place in the file.
    pub(super) fn update(&self, settings: &Arc<ServerSettings>) {
        self.settings.store(Arc::clone(settings));
    }
}

/// The name under which memory is opened for a server.
pub(super) fn system(server: &str) -> System {
    System {
        name: format!("mcp:{server}").into(),
        hosts: Vec::new(),
        trust_private: false,
        url_secrets: Default::default(),
    }
}
