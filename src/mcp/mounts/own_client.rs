//! The HTTP client of a mount's session.

use std::sync::Arc;

use addons::contract::{Denial, System};

use super::{MountError, Opening};
use crate::http::{OwnClient, Service};

/// Creates the HTTP client of a session, which sends requests on behalf of the session's container,
/// or of the proxy if all containers share the session.
pub(super) fn own_client(
    service: &Arc<Service>,
    system: &System,
    opening: &Opening,
) -> Result<OwnClient, MountError> {
    let client = OwnClient::of(service, system.clone(), opening.container.as_ref());
    client.ok_or_else(|| MountError::Denied(Denial::internal()))
}
