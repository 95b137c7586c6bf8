//! What asynchronous code of several folders shares.

mod accept_backoff;
mod tasks;
mod wake_gated;
#[cfg(test)]
pub(crate) mod waker;

use std::io;

use rustix::io::Errno;

pub use accept_backoff::AcceptBackoff;
pub use tasks::TokioTasks;
pub use wake_gated::WakeGated;

/// Whether a socket failed because this process or machine ran out of something, which is
/// nothing to hold against the far side.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
