//! The only way out of a child's network namespace.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use addons::contract::Delegation;
use tokio_util::sync::DropGuard;

/// Opens listeners that lead to the proxy.
pub trait WayOut: Send + Sync {
    /// Opens a Unix listener whose connections are the delegation's: they reach its hosts, and
    /// nothing else. It closes when the returned value is dropped, or the lease ends.
    fn open(&self, delegation: Arc<Delegation>) -> io::Result<OpenWayOut>;
}

/// A listener that is open.
pub struct OpenWayOut {
    /// Where it is.
    pub path: PathBuf,
    /// Closes it.
    pub guard: DropGuard,
}
