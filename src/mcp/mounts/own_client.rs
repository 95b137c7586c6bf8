//! HTTP requests of mounts.

use std::sync::Arc;

use addons::contract::{Denial, System};

use super::{MountError, Opening};
use crate::http::{OwnClient, Service};

/// The HTTP client of a session, on behalf of the session's container or of all containers.
pub(super) fn own_client(
    service: &Arc<Service>,
    system: &System,
    opening: &Opening,
) -> Result<OwnClient, MountError> {
    let client = OwnClient::of(service, system.clone(), opening.container.as_ref());
    client.ok_or_else(|| MountError::Denied(Denial::internal()))
}
