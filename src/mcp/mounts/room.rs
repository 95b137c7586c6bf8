//! Memory of a message that is being read from a server, out of the memory for buffered bodies.

use std::sync::Arc;

use addons::contract::Denial;

use super::MountError;
use crate::http::{OwnClient, Reservation};

/// Bytes of a message that are held without a reservation.
const UNRESERVED: usize = 16 * 1024;

/// Memory that the messages of one server are charged to.
pub trait MessageMemory: Send + Sync {
    /// Begins to reserve memory for a message.
    fn reserve(&self) -> Result<Arc<Reservation>, Denial>;
}

impl MessageMemory for OwnClient {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        Self::reserve(self)
    }
}

/// Memory of one message.
#[derive(Default)]
pub(super) struct Room {
    reservation: Option<Arc<Reservation>>,
    reserved: usize,
}

impl Room {
    /// Holds memory for a message of so many bytes. What was reserved before stays reserved when
    /// there is no more.
    pub fn hold(&mut self, memory: &dyn MessageMemory, bytes: usize) -> Result<(), MountError> {
        if bytes <= UNRESERVED {
            *self = Self::default();
            return Ok(());
        }
        let more = bytes.saturating_sub(self.reserved);
        if more > 0 {
            let reservation = match self.reservation.take() {
                Some(reservation) => reservation,
                None => memory.reserve().map_err(MountError::Denied)?,
            };
            let grown = reservation.grow(more);
            self.reservation = Some(reservation);
            grown.map_err(MountError::Denied)?;
            self.reserved = bytes;
        }
        Ok(())
    }
}
