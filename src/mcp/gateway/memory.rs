//! Charges long messages to the memory for buffered bodies until they are sent.

use std::sync::Arc;

use addons::contract::{Container, Denial};
use bytes::Bytes;

use crate::http::{Inspection, Reservation, Session};

/// Messages longer than this are charged to the memory for buffered bodies. Those that wait for a
/// quiet client are shorter, and bounded by number.
const CHARGED_FROM: usize = 16 * 1024;

/// The memory for buffered bodies, of one container.
#[derive(Clone)]
pub struct Memory {
    inspection: Arc<Inspection>,
    container: Option<Arc<Container>>,
    limit: usize,
}

impl Memory {
    /// That of a connection's container.
    pub fn of(session: &Session) -> Self {
        let service = &session.service;
        Self {
            inspection: Arc::clone(&service.inspection),
            container: session.container.clone(),
            limit: service.snapshot().config.proxy.limits.inspect_memory,
        }
    }

    /// Reserves memory for a message of this length, if it is a long one.
    pub fn reserve(&self, length: usize) -> Result<Charge, Denial> {
        let Some(container) = self.container.as_ref().filter(|_| length > CHARGED_FROM) else {
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

    /// The text as bytes that hold their memory.
    pub fn charge(&self, text: String) -> Result<Bytes, Denial> {
        Ok(self.reserve(text.len())?.hold(text.into()))
    }
}

/// Memory of one message.
pub struct Charge(Option<Arc<Reservation>>);

impl Charge {
    /// Gives the memory back when the bytes are dropped.
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
    /// Memory that is not counted.
    pub fn uncounted() -> Self {
        let registry = prometheus::Registry::new();
        Self {
            inspection: Arc::new(Inspection::new(&registry).unwrap()),
            container: None,
            limit: usize::MAX,
        }
    }
}
