//! The client of a DNS question.

use std::net::SocketAddr;
use std::sync::Arc;

use addons::contract::{Client, Container, Principal, Source, Unavailable, fold_address};
use time::OffsetDateTime;

use super::Snapshot;

/// The client of a question, and its identity if the connection has established one.
pub struct DnsClient {
    pub client: Client,
    /// The principal that the connection is bound to. Without one, the client's source is looked
    /// up.
    pub principal: Option<Principal>,
    /// The container id that the client claims in `X-Container-Id`.
    pub claimed_id: Option<Box<str>>,
}

impl From<SocketAddr> for DnsClient {
    /// A client that is identified by its address only.
    fn from(peer: SocketAddr) -> Self {
        Self {
            client: Client {
                source: Some(Source::Address(fold_address(peer.ip()))),
                peer: Some(peer),
            },
            principal: None,
            claimed_id: None,
        }
    }
}

impl DnsClient {
    /// Returns the container of the principal or, without a principal, the container that is
    /// registered for the source. `None` if there is no container, or if this connection must not
    /// be served under the container's lease. Fails if the registry cannot be read.
    pub(super) fn container(
        &self,
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Container>>, Unavailable> {
        if let Some(lease) = self.principal.as_ref().and_then(Principal::lease) {
            return Ok(Some(Arc::clone(lease)));
        }
        let Some(source) = &self.client.source else {
            return Ok(None);
        };
        let found = snapshot.containers.find(source)?;
        // A connection to a container's own listener without a bound lease must not be served under
        // a lease that began later. A container whose lease is over is returned, so that the
        // identity addon denies the question with the reason.
        let may_ask = |found: &Arc<Container>| match source {
            Source::Address(_) | Source::Token => true,
            Source::Listener(_) => !found.is_live(OffsetDateTime::now_utc()),
        };
        Ok(found.filter(may_ask))
    }
}
