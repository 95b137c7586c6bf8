//! Names to addresses, and the one way out to the world.

mod accept_backoff;
mod answers;
mod datagram;
mod dial;
mod own;
mod resolve;
mod upstream;
mod watch;

use std::io;

use rustix::io::Errno;

pub use accept_backoff::AcceptBackoff;
pub use dial::connect;
pub use own::OwnListeners;
pub use resolve::{Answer, Resolver, ResolverError};
pub use upstream::{SocketBudget, UpstreamSocket};
pub use watch::NameserverWatch;

/// Whether a socket failed because this process or machine ran out of something, which is
/// nothing to hold against the far side.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
