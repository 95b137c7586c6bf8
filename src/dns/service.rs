//! Admission of packets and connections, by the identity of the client, before a packet is parsed.

use std::net::SocketAddr;
use std::sync::Arc;

use addons::contract::{Code, Denial, names};
use hickory_resolver::net::xfer::Protocol;
use time::OffsetDateTime;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::bounds::{Bounds, Limits};
use super::flow::{self, response_code};
use super::message::Packet;
use super::question::Question;
use super::{DnsClient, Snapshot, SnapshotStore};

/// Admits packets and connections, and answers questions. One service for all transports, so that a
/// lease has one budget.
pub struct Service {
    snapshots: Arc<SnapshotStore>,
    bounds: Arc<Bounds>,
}

/// The decision about a packet.
pub(super) enum Admission {
    /// Send no DNS response: the packet is no query, or the budget of the lease or of all unknown
    /// sources together is used up.
    Silence,
    /// Send this response.
    Refusal(Vec<u8>),
    /// Judge a question of a known container.
    Question(Question),
}

/// The permits of one TCP connection.
pub(super) struct ConnectionSlot {
    lease_ended: CancellationToken,
    _permits: [OwnedSemaphorePermit; 2],
}

impl ConnectionSlot {
    /// Runs a conversation until it ends or the lease of its peer ends.
    pub async fn hold_for<T>(self, conversation: impl Future<Output = T>) {
        self.lease_ended.run_until_cancelled(conversation).await;
    }
}

impl Service {
    /// Makes a service that answers each question under the snapshot in force, within these limits.
    pub fn new(snapshots: Arc<SnapshotStore>, limits: Limits) -> Self {
        Self {
            snapshots,
            bounds: Arc::new(Bounds::new(limits)),
        }
    }

    /// Decides about a packet by its source and header. Costs a look-up of the container and no
    /// parsing.
    pub(super) fn admit(
        &self,
        bytes: &[u8],
        dns_client: DnsClient,
        protocol: Protocol,
    ) -> Admission {
        let Some(packet) = Packet::new(bytes) else {
            return Admission::Silence;
        };
        let snapshot = self.snapshots.current();
        let refuse = |denial| self.refuse_unknown(&snapshot, packet, &dns_client, denial);
        let container = match dns_client.container(&snapshot) {
            Ok(Some(container)) => container,
            Ok(None) => return refuse(Denial::unknown_source(None)),
            Err(_unavailable) => {
                return refuse(Denial::new(
                    Code::RegistryUnavailable,
                    "Registry unavailable",
                ));
            }
        };
        let share = container.state_or_init(|| self.bounds.share());
        if share.questions.check().is_err() {
            return Admission::Silence;
        }
        if let Some(code) = packet.flaw() {
            let answer = packet.reflect(code);
            let denial = Denial::malformed("the message is not a standard query with one question")
                .by(names::DNS);
            let mut live = flow::begin(&snapshot, &dns_client, None, bytes.len());
            live.belongs_to(&container);
            flow::refused(live, code, &denial, answer.len());
            return Admission::Refusal(answer);
        }
        Admission::Question(Question {
            snapshot,
            bounds: Arc::clone(&self.bounds),
            share: Arc::clone(share),
            container,
            packet: bytes.to_vec(),
            dns_client,
            protocol,
        })
    }

    /// Takes a slot for a connection; `None` if no slot is left for its source or in total. A few
    /// slots are shared by unknown sources, by sources whose lease is over, and by all sources while
    /// the registry cannot be read: without a slot, the connection is closed without a refusal.
    pub(super) fn slot(&self, peer: SocketAddr) -> Option<ConnectionSlot> {
        let (own, lease_ended) = match DnsClient::from(peer).container(&self.snapshots.current()) {
            Ok(Some(container)) if container.is_live(OffsetDateTime::now_utc()) => (
                Arc::clone(&container.state_or_init(|| self.bounds.share()).connections),
                container.ended().clone(),
            ),
            _ => (
                Arc::clone(&self.bounds.unknown_source_connections),
                CancellationToken::new(),
            ),
        };
        let own = own.try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.bounds.connections);
        let of_all = of_all.try_acquire_owned().ok()?;
        Some(ConnectionSlot {
            lease_ended,
            _permits: [own, of_all],
        })
    }

    /// Refuses an unknown source, or any source while the registry cannot be read. If the limit on
    /// such responses is exceeded, neither responds nor records a flow, so that a flood costs little
    /// more than receiving it.
    fn refuse_unknown(
        &self,
        snapshot: &Snapshot,
        packet: Packet<'_>,
        dns_client: &DnsClient,
        denial: Denial,
    ) -> Admission {
        if self.bounds.unknown_source_answers.check().is_err() {
            return Admission::Silence;
        }
        let code = response_code(&denial);
        let answer = packet.reflect(code);
        let live = flow::begin(snapshot, dns_client, None, packet.bytes.len());
        flow::refused(live, code, &denial.by(names::IDENTITY), answer.len());
        Admission::Refusal(answer)
    }
}
