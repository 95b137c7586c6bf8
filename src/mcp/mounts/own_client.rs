//! HTTP requests of mounts.

use std::sync::Arc;

use addons::contract::{Denial, System};

use super::{MountError, Opening};
use crate::http::{OwnClient, Service};

/// The client for a session: it works for the session's container, or for all of them.
pub(super) fn own_client(
    service: &Arc<Service>,
    system: &System,
    opening: &Opening,
) -> Result<OwnClient, MountError> {
    let client = OwnClient::of(service, system.clone(), opening.container.as_ref());
    client.ok_or_else(|| MountError::Denied(Denial::internal()))
}
