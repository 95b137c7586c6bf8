//! Charges servers' messages and lists to the memory for buffered bodies.

use std::sync::Arc;

use addons::contract::{Container, Denial, System};

use crate::http::{OwnClient, Reservation};

/// The longest message that needs no reservation, in bytes.
const UNRESERVED: usize = 16 * 1024;

/// Memory that messages are charged to.
pub trait MessageMemory: Send + Sync {
    /// Opens a reservation for a message. The reservation starts with a fixed overhead. Denies if
    /// memory is exhausted.
    fn reserve(&self) -> Result<Arc<Reservation>, Denial>;

    /// Counts a denial for lack of memory. The caller counts each denied message once.
    fn count(&self, denial: &Denial);
}

/// Opens the memory that the messages of a server are charged to. The container is `None` for a
/// server that all containers share. Returns `None` after an internal error.
pub type OpenMemory =
    Arc<dyn Fn(System, Option<&Arc<Container>>) -> Option<Arc<dyn MessageMemory>> + Send + Sync>;

impl MessageMemory for OwnClient {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        Self::reserve(self)
    }

    fn count(&self, denial: &Denial) {
        Self::count(self, denial);
    }
}

/// The memory that is reserved for one message, until the last clone is dropped.
#[derive(Clone, Default)]
pub struct MessageReservation {
    reservation: Option<Arc<Reservation>>,
    reserved: usize,
}

impl From<Option<Arc<Reservation>>> for MessageReservation {
    fn from(reservation: Option<Arc<Reservation>>) -> Self {
        Self {
            reservation,
            reserved: 0,
        }
    }
}

impl MessageReservation {
    /// Grows the reservation to `bytes` bytes, or releases it if a message of that length needs
    /// none. Never shrinks it otherwise. If memory is exhausted, fails, counts the denial and keeps
    /// the earlier reservation.
    pub fn grow_to(&mut self, memory: &dyn MessageMemory, bytes: usize) -> Result<(), Denial> {
        let grown = self.try_grow_to(memory, bytes);
        grown.inspect_err(|denial| memory.count(denial))
    }

    /// As [`Self::grow_to`], without counting a denial: for a caller that tries again.
    pub fn try_grow_to(&mut self, memory: &dyn MessageMemory, bytes: usize) -> Result<(), Denial> {
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

/// The account of one container, in tests.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub struct Account {
    inspection: Arc<crate::http::Inspection>,
    container: Container,
    limit: usize,
    metrics: prometheus::Registry,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Account {
    /// Creates an account of `bytes` bytes.
    pub fn of(bytes: usize) -> Arc<Self> {
        let metrics = prometheus::Registry::new();
        Arc::new(Self {
            inspection: Arc::new(crate::http::Inspection::new(&metrics).unwrap()),
            container: crate::http::unregistered_container().unwrap(),
            // A container gets a quarter of all memory.
            limit: bytes * 4,
            metrics,
        })
    }

    /// The number of reserved bytes.
    pub fn reserved(&self) -> usize {
        let metrics = self.metrics.gather();
        let mut memory = metrics
            .iter()
            .filter(|one| one.name() == "proxy_inspection_memory_bytes");
        let gauge = memory.next().unwrap().get_metric().first().unwrap();
        gauge.get_gauge().get_value() as usize
    }

    /// The number of counted denials.
    pub fn rejected(&self) -> usize {
        let metrics = self.metrics.gather();
        let all = metrics.iter();
        let mut rejected = all.filter(|one| one.name() == "proxy_inspection_rejected_total");
        let counts = rejected.next().unwrap().get_metric().iter();
        counts
            .map(|one| one.get_counter().get_value() as usize)
            .sum()
    }
}

#[cfg(test)]
impl MessageMemory for Account {
    fn reserve(&self) -> Result<Arc<Reservation>, Denial> {
        self.inspection.begin(&self.container, self.limit)
    }

    fn count(&self, denial: &Denial) {
        self.inspection.count(denial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_for_which_there_is_no_memory_is_counted_once() {
        let account = Account::of(2 * UNRESERVED);
        let mut message = MessageReservation::default();
        message.grow_to(&*account, UNRESERVED + 1).unwrap();
        assert_eq!(account.rejected(), 0);
        // The reservation cannot grow, and another cannot begin.
        assert!(message.grow_to(&*account, 4 * UNRESERVED).is_err());
        assert_eq!(account.rejected(), 1);
        let mut other = MessageReservation::default();
        assert!(other.grow_to(&*account, UNRESERVED + 1).is_err());
        assert_eq!(account.rejected(), 2);
        assert!(other.try_grow_to(&*account, UNRESERVED + 1).is_err());
        assert_eq!(account.rejected(), 2);
    }
}
