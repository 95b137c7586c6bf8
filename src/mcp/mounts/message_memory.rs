//! Charges messages of servers, while they are read, to the memory for buffered bodies.

use std::sync::Arc;

use addons::contract::Denial;

use crate::http::{OwnClient, Reservation};

/// The longest message that needs no reservation, in bytes.
const UNRESERVED: usize = 16 * 1024;

/// Memory that the messages of one server are charged to.
pub trait MessageMemory: Send + Sync {
    /// Opens a reservation for a message. It starts with a fixed overhead. Denies if memory is
    /// exhausted.
    fn reserve(&self) -> Result<Arc<Reservation>, Denial>;
}

impl MessageMemory for OwnClient {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        Self::reserve(self)
    }
}

/// The memory that is reserved for one message.
#[derive(Default)]
pub(super) struct MessageReservation {
    reservation: Option<Arc<Reservation>>,
    reserved: usize,
}

impl MessageReservation {
    /// Grows the reservation to `bytes` bytes, or releases it if a message of that length needs
    /// none. Never shrinks it otherwise. If memory is exhausted, fails and keeps the earlier
    /// reservation.
    pub fn grow_to(&mut self, memory: &dyn MessageMemory, bytes: usize) -> Result<(), Denial> {
        if bytes <= UNRESERVED {
            *self = Self::default();
            return Ok(());
        }
        let more = bytes.saturating_sub(self.reserved);
        if more > 0 {
            let reservation = match self.reservation.take() {
                Some(reservation) => reservation,
                None => memory.reserve()?,
            };
            let grown = reservation.grow(more);
            self.reservation = Some(reservation);
            grown?;
            self.reserved = bytes;
        }
        Ok(())
    }
}
