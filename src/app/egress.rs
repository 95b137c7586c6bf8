//! Opens the Unix listeners through which MCP servers in network namespaces reach the proxy.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use addons::contract::{Delegation, LeaseId};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::ingress::{Engine, serve_delegated};
use crate::mcp::{Egress, EgressListener};

/// The prefix of a socket's file name: `mcp-`, 12 hex digits, `.sock`.
pub const EGRESS_PREFIX: &str = "mcp-";

/// Opens listeners in the directory of the leases' sockets.
pub struct EgressListeners {
    /// Set after the engine is built. Weak, since the engine owns the gateway, and the gateway's
    /// servers own these `EgressListeners`.
    engine: OnceLock<Weak<Engine>>,
    directory: PathBuf,
    runtime: Handle,
}

impl EgressListeners {
    /// Returns an opener of listeners in `directory`. The runtime of the caller accepts their
    /// connections. Panics outside a runtime.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            engine: OnceLock::new(),
            directory,
            runtime: Handle::current(),
        }
    }

    /// Sets the engine that serves the listeners. Until then, no listener can be opened.
    pub fn set_engine(&self, engine: &Arc<Engine>) {
        // Cannot fail: `set_engine` is called once.
        let _ = self.engine.set(Arc::downgrade(engine));
    }
}

impl Egress for EgressListeners {
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<EgressListener> {
        // `UnixListener::bind` needs a runtime.
        let _entered = self.runtime.enter();
        // A random id, since one lease can have several listeners. Short, since the path of a
        // socket has at most 107 bytes.
        let name = format!("{EGRESS_PREFIX}{}.sock", LeaseId::generate().short());
        let path = self.directory.join(name);
        // A sandbox connects from another working directory.
        if !path.is_absolute() {
            let directory = self.directory.display();
            let error = format!("the absolute path of {directory} is too long for sockets");
            return Err(io::Error::other(error));
        }
        let engine = self.engine.get().and_then(Weak::upgrade);
        let engine = engine.ok_or_else(|| io::Error::other("the proxy is starting or stopping"))?;
        let listener = UnixListener::bind(&path)?;
        let closed = CancellationToken::new();
        let (socket, until) = (path.clone(), closed.clone());
        self.runtime.spawn(async move {
            serve_delegated(engine, listener, delegation, until).await;
            let _ = std::fs::remove_file(socket);
        });
        Ok(EgressListener {
            path,
            guard: closed.drop_guard(),
        })
    }
}
