//! Asynchronous building blocks, a limit for log lines, and socket checks.

mod accept_backoff;
mod log_throttle;
mod printable;
mod tasks;
mod wake_gated;
#[cfg(test)]
pub(crate) mod waker;

use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

pub use accept_backoff::AcceptBackoff;
pub(crate) use log_throttle::LogThrottle;
pub(crate) use printable::{is_harmful, printable, printable_json, printable_lines};
pub use tasks::TokioTasks;
pub use wake_gated::WakeGated;

/// Waits for `period` and returns `true`. Returns `false` at once when `shutdown` is cancelled.
pub(crate) async fn pause(period: Duration, shutdown: &CancellationToken) -> bool {
    let sleep = tokio::time::sleep(period);
    shutdown.run_until_cancelled(sleep).await.is_some()
}

/// The number of threads that serve connections: the CPUs available to the process.
pub(crate) fn threads() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Whether the peer of a socket has closed the connection or its sending side, or the connection
/// has failed. Does not read from the socket and does not block.
pub(crate) fn has_hung_up(socket: &impl AsFd) -> bool {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && polled.iter().any(|fd| fd.revents().intersects(gone))
}

/// Whether an error of a socket means that this process or the machine has run out of file
/// descriptors or memory. The peer did not cause such an error.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
