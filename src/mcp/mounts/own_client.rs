//! HTTP requests of mounts.

use std::sync::Arc;

use addons::contract::{Delegation, Denial, System};

use super::{MountError, Opening};
use crate::http::{OwnClient, Service};

/// The client for a session: it works for the session's container, or for all of them.
pub(super) fn own_client(
    service: &Arc<Service>,
    system: &System,
    opening: &Opening,
) -> Result<OwnClient, MountError> {
    let (service, system) = (Arc::clone(service), system.clone());
    let client = match &opening.container {
        Some(container) => {
            let delegation = Delegation::new(system, Arc::clone(container));
            Some(OwnClient::delegated(service, Arc::new(delegation)))
        }
        None => OwnClient::system(service, Arc::new(system)),
    };
    client.ok_or_else(|| MountError::Denied(Denial::internal()))
}
