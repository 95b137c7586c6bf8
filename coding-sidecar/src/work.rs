//! Cancellation and deadline of one operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::failure::Failure;

/// One operation that may be cancelled and that ends at a deadline.
///
/// An operation calls [`Work::check`] between files, between chunks, and every few hundred entries.
#[derive(Debug)]
pub struct Work {
    cancelled: AtomicBool,
    deadline: Instant,
}

impl Work {
    /// An operation with this deadline.
    pub fn new(deadline: Instant) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            deadline,
        }
    }

    /// Cancels the operation: its next check fails.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Fails if the operation was cancelled or its deadline has passed.
    pub fn check(&self) -> Result<(), Failure> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Failure::Cancelled);
        }
        if Instant::now() >= self.deadline {
            return Err(Failure::DeadlinePassed);
        }
        Ok(())
    }
}
