//! Where leases are kept, so that they outlive the process.

use std::error::Error;
use std::fmt;

use addons::contract::{LeaseId, Registration, Standing};
use thiserror::Error;
use time::OffsetDateTime;

/// Keeps leases. Several proxies may share what is behind a store.
///
/// `Display` names the store as an operator knows it, for example by its path. Methods block; the
/// registry calls them on blocking threads, one at a time.
///
/// When a method returns `Ok`, its change is durable and visible to every proxy that shares the
/// store. After an error it is not known whether the change was made, and the next
/// [`LeaseStore::sync`] reads all leases. Times are kept to the millisecond. An id that the store
/// does not hold is ignored.
pub trait LeaseStore: fmt::Display + Send {
    /// Creates a store that does not exist, and migrates one that an older version made. A store
    /// that cannot be read is left alone. Called once, before every other method.
    fn open(&mut self) -> Result<(), StoreError>;

    /// Checks that the store can be read. Passes every lease to `take` if the store was changed
    /// by others since the last call or if `whole` is set, and returns whether it did. After an
    /// error, the leases that `take` got mean nothing.
    fn sync(&mut self, whole: bool, take: &mut dyn FnMut(Registration))
    -> Result<bool, StoreError>;

    /// Begins leases, all or none. Each replaces the leases that have its container's id or its
    /// address.
    fn begin(&mut self, leases: &[Registration]) -> Result<(), StoreError>;

    /// Moves the end of a lease.
    fn extend(&mut self, lease: LeaseId, expires_at: OffsetDateTime) -> Result<(), StoreError>;

    /// Ends leases.
    fn end(&mut self, leases: &[LeaseId]) -> Result<(), StoreError>;

    /// Ends the leases that expired before a time; returns how many.
    fn prune(&mut self, before: OffsetDateTime) -> Result<usize, StoreError>;

    /// Keeps what a lease's container has come to by its tool calls.
    fn set_standing(&mut self, lease: LeaseId, standing: Standing) -> Result<(), StoreError>;
}

/// Why a store could not be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process holds the store. This passes within seconds.
    #[error("{0}")]
    Busy(#[source] Box<dyn Error + Send + Sync>),
    /// An operator has to act: the text says how.
    #[error("{0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}
