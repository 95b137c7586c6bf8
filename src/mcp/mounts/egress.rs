//! The only connection out of a child process's network namespace.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use addons::contract::Delegation;
use tokio_util::sync::DropGuard;

/// Opens the listeners through which child processes reach the proxy.
pub trait Egress: Send + Sync {
    /// Opens a Unix listener. Its connections are flows of the lease in `delegation`, and reach
    /// only the hosts that `delegation` names. The listener closes when the returned guard is
    /// dropped or the lease ends.
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<EgressListener>;
}

/// An open listener.
pub struct EgressListener {
    /// The path of the socket.
    pub path: PathBuf,
    /// Closes the listener when dropped.
    pub guard: DropGuard,
}
