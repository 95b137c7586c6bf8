//! The ways out of MCP servers in network namespaces: the Unix listeners over which these servers
//! reach the proxy.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use addons::contract::{Delegation, LeaseId};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::ingress::{Engine, serve_delegated};
use crate::mcp::{Egress, EgressListener};

/// The beginning of the file name of a way out, before 12 hex digits and `.sock`.
pub const PREFIX: &str = "mcp-";

/// Opens the ways out of MCP servers: Unix listeners in the directory of the leases' sockets.
pub struct WaysOut {
    /// Set after the engine is built. Weak, since the engine owns the gateway, and the gateway's
    /// servers own this `WaysOut`.
    engine: OnceLock<Weak<Engine>>,
    directory: PathBuf,
    runtime: Handle,
}

impl WaysOut {
    /// Returns an opener of listeners in `directory`. The runtime of the caller accepts their
    /// connections. Panics outside a runtime.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            engine: OnceLock::new(),
            directory,
            runtime: Handle::current(),
        }
    }

    pub fn serve_with(&self, engine: &Arc<Engine>) {
        // Cannot fail: `serve_with` is called once.
        let _ = self.engine.set(Arc::downgrade(engine));
    }
}

impl Egress for WaysOut {
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<EgressListener> {
        let _entered = self.runtime.enter();
        // The random name is short, since the path of a socket has at most 107 bytes.
        let name = format!("{PREFIX}{}.sock", LeaseId::generate().short());
        let path = self.directory.join(name);
        let engine = self.engine.get().and_then(Weak::upgrade);
        let engine = engine.ok_or(io::ErrorKind::NotConnected)?;
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
