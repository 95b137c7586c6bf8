//! The limits of one operation in time: its deadline, and a caller that went away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::failure::Failure;

/// One operation that may be cancelled and that ends at a deadline.
///
/// An operation calls [`Work::check`] between files, chunks and every few hundred lines.
#[derive(Debug)]
pub struct Work {
    cancelled: AtomicBool,
    deadline: Instant,
}

impl Work {
    /// Work that may go on until `deadline`.
    pub fn new(deadline: Instant) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            deadline,
        }
    }

    /// Ends the operation at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Fails once the operation was cancelled or its deadline has passed.
    pub fn check(&self) -> Result<(), Failure> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Failure::Cancelled);
        }
        if Instant::now() >= self.deadline {
            return Err(Failure::DeadlinePassed);
        }
        Ok(())
    }

    /// The instant from which [`Work::check`] fails.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}
