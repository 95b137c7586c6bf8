//! The signals to which a server reacts.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of signals. Made before a server says that it runs: without them, a signal that comes
/// right after ends the process at once.
pub(super) struct Signals {
    pub terminate: Signal,
    pub interrupt: Signal,
    pub hangup: Signal,
    /// Supervisors and log rotation send SIGUSR1 and SIGUSR2, which end a process that has no
    /// handler for them.
    pub first_user: Signal,
    pub second_user: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            first_user: signal(SignalKind::user_defined1())?,
            second_user: signal(SignalKind::user_defined2())?,
        })
    }
}
