//! Who may ask: decided by who the client is, before a packet is parsed.

use std::net::SocketAddr;
use std::sync::Arc;

use addons::contract::{Code, Denial, names};
use hickory_resolver::net::xfer::Protocol;
use time::OffsetDateTime;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::bounds::{Bounds, Limits};
use super::flight::{self, response_code};
use super::message::Packet;
use super::question::Question;
use super::{Asker, CurrentSnapshot, Snapshot};

/// Decides about packets and connections, and answers questions. Shared by everything that takes
/// questions, so that a lease has one budget for all transports.
pub struct Service {
    snapshot: CurrentSnapshot,
    bounds: Arc<Bounds>,
}

/// What becomes of a packet.
pub(super) enum Admission {
    /// Nothing: not even an answer.
    Silence(Unanswered),
    /// This answer.
    Refusal(Vec<u8>),
    /// A question of a known container.
    Question(Question),
}

/// Why a packet is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// It is too short for a message, or itself an answer.
    NoMessage,
    /// Its source has sent more than is looked at in a second.
    OverBudget,
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
    /// Answers questions under the snapshot in force at the time, within these limits.
    pub fn new(snapshot: CurrentSnapshot, limits: Limits) -> Self {
        Self {
            snapshot,
            bounds: Arc::new(Bounds::new(limits)),
        }
    }

    /// Decides about a packet by who sent it. Costs a look-up and no parsing.
    pub(super) fn admit(&self, bytes: &[u8], asker: Asker, protocol: Protocol) -> Admission {
        let Some(packet) = Packet::new(bytes) else {
            return Admission::Silence(Unanswered::NoMessage);
        };
        let snapshot = (self.snapshot)();
        let container = match asker.container(&snapshot) {
            Ok(Some(container)) => container,
            Ok(None) => {
                let denial = Denial::new(Code::UnknownSource, "Unknown source IP");
                return self.refuse_unknown(&snapshot, packet, &asker, denial);
            }
            Err(_unavailable) => {
                let denial = Denial::new(Code::RegistryUnavailable, "Registry unavailable");
                return self.refuse_unknown(&snapshot, packet, &asker, denial);
            }
        };
        let share = container.state_or_init(|| self.bounds.share());
        if share.questions.check().is_err() {
            return Admission::Silence(Unanswered::OverBudget);
        }
        if let Some(code) = packet.flaw() {
            let answer = packet.reflect(code);
            let denial = Denial::malformed("not one plain question").by(names::DNS);
            let mut live = flight::begin(&snapshot, &asker, None, packet.len());
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
            asker,
            protocol,
        })
    }

    /// A slot for a connection, if there is one left for its source. Unknown sources share a
    /// few among them, in which they are told that they are refused. So do leases that are over: a
    /// connection bound to one would end before the answer that says so.
    pub(super) fn slot(&self, peer: SocketAddr) -> Option<ConnectionSlot> {
        let (own, lease_ended) = match Asker::from(peer).container(&(self.snapshot)()) {
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

    /// Refuses whom nobody knows. What is not answered is not recorded either: a flood must not
    /// cost more than receiving it.
    fn refuse_unknown(
        &self,
        snapshot: &Snapshot,
        packet: Packet<'_>,
        asker: &Asker,
        denial: Denial,
    ) -> Admission {
        if self.bounds.unknown_source_answers.check().is_err() {
            return Admission::Silence(Unanswered::OverBudget);
        }
        let code = response_code(&denial);
        let answer = packet.reflect(code);
        let live = flight::begin(snapshot, asker, None, packet.len());
        flight::refused(live, code, &denial.by(names::IDENTITY), answer.len());
        Admission::Refusal(answer)
    }
}
