//! What addons need from outside, as traits that the engine implements.

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use zeroize::Zeroizing;

use super::container::{Container, Source};

/// The registry cannot be read; every flow is denied until it can.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the registry cannot be read")]
pub struct Unavailable;

/// Finds who is at a source. Reads memory only.
pub trait Containers: Send + Sync {
    /// The lease at a source. A lease whose time is over is still found, so that its next flow
    /// can be told why it is denied; one that was deleted or replaced is not.
    fn find(&self, source: &Source) -> Result<Option<Arc<Container>>, Unavailable>;

    /// Whether the registry can be read at all: asked on every request of a known connection.
    fn available(&self) -> bool;

    /// Removes a lease whose time is over. Returns at once; the store follows.
    fn expire(&self, container: &Arc<Container>);
}

/// Tells our own listeners from the rest of the world.
pub trait OwnAddresses: Send + Sync {
    /// Whether connecting there would reach one of our own listeners.
    fn is_ours(&self, address: SocketAddr) -> bool;
}

/// A secret whose value may change while we run. It has no `Debug` on purpose.
pub trait SecretSource: Send + Sync {
    /// The value now; an error says what is wrong with the source, never the value.
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String>;

    /// Another number than before where [`SecretSource::read`] may no longer answer what it did:
    /// asked before each use of what was made of the value.
    fn version(&self) -> u64;
}
