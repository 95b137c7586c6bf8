//! Who may ask: decided by the source address, before a packet is parsed.

use std::net::SocketAddr;
use std::sync::Arc;

use addons::contract::{Container, Source, fold_address};
use hickory_proto::op::ResponseCode;
use hickory_resolver::net::xfer::Protocol;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::bounds::{Bounds, Share};
use super::message::Packet;
use super::question::Question;
use super::{CurrentWorld, World};

/// What the sockets ask about packets and connections.
pub(super) struct Service {
    world: CurrentWorld,
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
pub(super) struct Seat {
    lease_ended: CancellationToken,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Seat {
    /// Runs a conversation until it ends, or the lease of its peer does.
    pub async fn hold_for<T>(self, conversation: impl Future<Output = T>) {
        self.lease_ended.run_until_cancelled(conversation).await;
    }
}

impl Service {
    pub fn new(world: CurrentWorld) -> Self {
        Self {
            world,
            bounds: Arc::new(Bounds::new()),
        }
    }

    /// Decides about a packet by where it came from. Costs a look-up and no parsing.
    pub fn admit(&self, bytes: &[u8], peer: SocketAddr, protocol: Protocol) -> Admission {
        let Some(packet) = Packet::new(bytes) else {
            return Admission::Silence;
        };
        let world = (self.world)();
        let share = match find(&world, peer) {
            Ok(Some(container)) => container.owned(Share::new),
            Ok(None) => return self.brush_off(packet, ResponseCode::Refused),
            Err(_unavailable) => return self.brush_off(packet, ResponseCode::ServFail),
        };
        if share.questions.check().is_err() {
            return Admission::Silence;
        }
        if let Some(code) = packet.flaw() {
            return Admission::Refusal(packet.reflect(code));
        }
        Admission::Question(Question {
            world,
            bounds: Arc::clone(&self.bounds),
            share,
            packet: packet.to_vec(),
            peer,
            protocol,
        })
    }

    /// A seat for a connection, if there is one left for its source. Unknown sources share a
    /// few among them, in which they are told that they are refused.
    pub fn seat(&self, peer: SocketAddr) -> Option<Seat> {
        let (own, lease_ended) = match find(&(self.world)(), peer) {
            Ok(Some(container)) => (
                Arc::clone(&container.owned(Share::new).connections),
                container.ended().clone(),
            ),
            Ok(None) | Err(_) => (
                Arc::clone(&self.bounds.stranger_connections),
                CancellationToken::new(),
            ),
        };
        let own = own.try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.bounds.connections);
        let of_all = of_all.try_acquire_owned().ok()?;
        Some(Seat {
            lease_ended,
            _permits: [own, of_all],
        })
    }

    fn brush_off(&self, packet: Packet<'_>, code: ResponseCode) -> Admission {
        match self.bounds.stranger_answers.check() {
            Ok(()) => Admission::Refusal(packet.reflect(code)),
            Err(_spent) => Admission::Silence,
        }
    }
}

fn find(
    world: &World,
    peer: SocketAddr,
) -> Result<Option<Arc<Container>>, addons::contract::Unavailable> {
    world
        .containers
        .find(&Source::Address(fold_address(peer.ip())))
}
