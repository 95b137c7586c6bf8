//! Who may ask: decided by the source address, before a packet is parsed.

use std::net::SocketAddr;
use std::sync::Arc;

use addons::contract::{Code, Container, Denial, Source, fold_address, names};
use hickory_resolver::net::xfer::Protocol;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::bounds::{Bounds, Limits};
use super::flight::{self, response_code};
use super::message::Packet;
use super::question::Question;
use super::{CurrentSnapshot, Snapshot};

/// What the sockets ask about packets and connections.
pub(super) struct Service {
    snapshot: CurrentSnapshot,
    bounds: Arc<Bounds>,
}

/// What becomes of a packet.
pub(super) enum Admission {
    /// Nothing: not even an answer.
    Silence,
    /// This answer.
    Refusal(Vec<u8>),
    /// A question of a known container.
    Question(Question),
}

/// Room for one connection.
pub(super) struct ConnectionSlot {
    lease_ended: CancellationToken,
    _permits: [OwnedSemaphorePermit; 2],
}

impl ConnectionSlot {
    /// Runs a conversation until it ends, or the lease of its peer does.
    pub async fn hold_for<T>(self, conversation: impl Future<Output = T>) {
        self.lease_ended.run_until_cancelled(conversation).await;
    }
}

impl Service {
    pub fn new(snapshot: CurrentSnapshot, limits: Limits) -> Self {
        Self {
            snapshot,
            bounds: Arc::new(Bounds::new(limits)),
        }
    }

    /// Decides about a packet by where it came from. Costs a look-up and no parsing.
    pub fn admit(&self, bytes: &[u8], peer: SocketAddr, protocol: Protocol) -> Admission {
        let Some(packet) = Packet::new(bytes) else {
            return Admission::Silence;
        };
        let snapshot = (self.snapshot)();
        let container = match find(&snapshot, peer) {
            Ok(Some(container)) => container,
            Ok(None) => {
                let denial = Denial::new(Code::UnknownSource, "Unknown source IP");
                return self.refuse_unknown(&snapshot, packet, peer, denial);
            }
            Err(_unavailable) => {
                let denial = Denial::new(Code::RegistryUnavailable, "Registry unavailable");
                return self.refuse_unknown(&snapshot, packet, peer, denial);
            }
        };
        let share = container.state_or_init(|| self.bounds.share());
        if share.questions.check().is_err() {
            return Admission::Silence;
        }
        if let Some(code) = packet.flaw() {
            let answer = packet.reflect(code);
            let denial = Denial::malformed("not one plain question").by(names::DNS);
            let mut live = flight::begin(&snapshot, peer, None, packet.len());
            live.belongs_to(&container);
            flight::refused(live, code, &denial, answer.len());
            return Admission::Refusal(answer);
        }
        Admission::Question(Question {
            snapshot,
            bounds: Arc::clone(&self.bounds),
            share: Arc::clone(share),
            container,
            packet: packet.to_vec(),
            peer,
            protocol,
        })
    }

    /// A slot for a connection, if there is one left for its source. Unknown sources share a
    /// few among them, in which they are told that they are refused.
    pub fn slot(&self, peer: SocketAddr) -> Option<ConnectionSlot> {
        let (own, lease_ended) = match find(&(self.snapshot)(), peer) {
            Ok(Some(container)) => (
                Arc::clone(&container.state_or_init(|| self.bounds.share()).connections),
                container.ended().clone(),
            ),
            Ok(None) | Err(_) => (
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

    /// Refuses whom nobody knows. What is not answered is not recorded either: a flood must not
    /// cost more than receiving it.
    fn refuse_unknown(
        &self,
        snapshot: &Snapshot,
        packet: Packet<'_>,
        peer: SocketAddr,
        denial: Denial,
    ) -> Admission {
        if self.bounds.unknown_source_answers.check().is_err() {
            return Admission::Silence;
        }
        let code = response_code(&denial);
        let answer = packet.reflect(code);
        let live = flight::begin(snapshot, peer, None, packet.len());
        flight::refused(live, code, &denial.by(names::IDENTITY), answer.len());
        Admission::Refusal(answer)
    }
}

fn find(
    snapshot: &Snapshot,
    peer: SocketAddr,
) -> Result<Option<Arc<Container>>, addons::contract::Unavailable> {
    snapshot
        .containers
        .find(&Source::Address(fold_address(peer.ip())))
}
