//! Charges long messages to the memory for buffered bodies. A message is charged until it is sent.
//! A message of a resumable stream stays charged while the stream keeps it.

use std::sync::Arc;

use addons::contract::{Container, Denial};
use bytes::Bytes;

use super::super::message_memory::MessageMemory;
use crate::http::{Inspection, Reservation, Session};

/// The longest message that is not charged, in bytes. Streams bound the bytes of such messages that
/// wait for the clients of a lease.
const UNCHARGED: usize = 16 * 1024;

/// One container's memory for buffered bodies.
#[derive(Clone)]
pub struct Memory {
    inspection: Arc<Inspection>,
    container: Option<Arc<Container>>,
    limit: usize,
}

impl Memory {
    /// The memory of a connection's container.
    pub fn of(session: &Session) -> Self {
        let service = &session.service;
        Self {
            inspection: Arc::clone(&service.inspection),
            container: session.container.clone(),
            limit: service.snapshot().config.proxy.limits.inspect_memory,
        }
    }

    /// Reserves memory for a message of this length in bytes; nothing for a short one.
    pub fn reserve(&self, length: usize) -> Result<Charge, Denial> {
        let Some(container) = self.container.as_ref().filter(|_| length > UNCHARGED) else {
            return Ok(Charge(None));
        };
        let reserved = (|| {
            let reservation = self.inspection.begin(container, self.limit)?;
            reservation.grow(length)?;
            Ok(reservation)
        })();
        let reservation = reserved.inspect_err(|denial| self.inspection.count(denial))?;
        Ok(Charge(Some(reservation)))
    }
}

impl MessageMemory for Memory {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        let container = self.container.as_ref().ok_or_else(Denial::internal)?;
        self.inspection.begin(container, self.limit)
    }

    fn count(&self, denial: &Denial) {
        self.inspection.count(denial);
    }
}

/// The reservation for one message; empty for a short one.
pub struct Charge(Option<Arc<Reservation>>);

impl Charge {
    /// Ties the reservation to the bytes: dropping the bytes releases the reservation.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        match self.0 {
            Some(reservation) => reservation.keep(bytes),
            None => bytes,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Memory {
    /// The memory of a container that gets `bytes` bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        Self {
            container: crate::http::unregistered_container().map(Arc::new),
            limit: bytes * 4,
            ..Self::uncounted()
        }
    }

    /// Memory without a container: nothing is charged.
    pub fn uncounted() -> Self {
        let registry = prometheus::Registry::new();
        Self {
            inspection: Arc::new(Inspection::new(&registry).unwrap()),
            container: None,
            limit: usize::MAX,
        }
    }
}
