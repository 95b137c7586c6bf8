//! The store in which leases outlive the process.

use std::error::Error;
use std::fmt;

use addons::contract::{ContainerId, LeaseId, Registration, Standing};
use thiserror::Error;
use time::OffsetDateTime;

/// Stores leases durably. Several proxies may share the storage behind a store.
///
/// `Display` is the store's name for operators, for example its path. Methods block; the registry
/// calls them on blocking threads, one at a time.
///
/// When a method returns `Ok`, its change is durable and visible to every proxy that shares the
/// storage. After an error, the change may or may not have been made, and the next
/// [`LeaseStore::sync`] reads all leases. Times have a resolution of a millisecond. A lease id that
/// is not in the store is ignored.
///
/// A standing (a security level and an abort latch) belongs to a container's id. The store keeps it
/// when the lease is replaced, ended or pruned, until [`LeaseStore::remove`].
pub trait LeaseStore: fmt::Display + Send {
    /// Creates a missing store, and migrates the store of an older version. A store that cannot be
    /// read is not touched. The registry calls `open` once, before the other methods, and calls
    /// those even if `open` fails.
    fn open(&mut self) -> Result<(), StoreError>;

    /// Checks that the store can be read. Passes every lease to `take` and returns `true` in three
    /// cases: `whole` is set, another process changed the store since the last call, or an
    /// operation failed since then. Otherwise returns `false`. After an error, discard the leases
    /// that were passed to `take`.
    fn sync(&mut self, whole: bool, take: &mut dyn FnMut(Registration))
    -> Result<bool, StoreError>;

    /// Inserts leases, all or none. Each replaces the leases with the same container id or the same
    /// address. Raises the standing of each to the one that is kept for its container's id.
    fn begin(&mut self, leases: &mut [Registration]) -> Result<(), StoreError>;

    /// Sets the expiry of a lease.
    fn extend(&mut self, lease: LeaseId, expires_at: OffsetDateTime) -> Result<(), StoreError>;

    /// Deletes a container's lease and its standing. Returns whether there was any.
    fn remove(&mut self, id: &ContainerId) -> Result<bool, StoreError>;

    /// Sets the standings of leases, and deletes the leases.
    fn end(&mut self, leases: &[(LeaseId, Standing)]) -> Result<(), StoreError>;

    /// Deletes the leases that expired at or before a time. Returns their number.
    fn prune(&mut self, before: OffsetDateTime) -> Result<usize, StoreError>;

    /// Sets the standing of a container, also of one without a lease.
    fn set_standing(&mut self, id: &ContainerId, standing: Standing) -> Result<(), StoreError>;
}

/// Why a store could not be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has locked the store, usually for a few seconds at most.
    #[error("{0}")]
    Busy(#[source] Box<dyn Error + Send + Sync>),
    /// Any other error. The operator may have to act.
    #[error("{0}")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}
