//! The commands that run at once, of each container and in all.

use std::sync::Arc;

use addons::contract::{ContainerId, EvaluatorError};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::mcp::policy::turns::Turns;

/// Limit on the commands that run at once for one container.
const MAX_OF_CONTAINER: usize = 4;
/// Limit on the commands that run at once.
const MAX_SLOTS: usize = 16;
/// The last slots, which only containers without a slot get, so that a few containers cannot take
/// all.
const MAX_FIRST: usize = 4;

/// Hands out slots to containers in turn.
#[derive(Clone)]
pub struct Slots(Arc<Mutex<State>>);

struct State {
    turns: Turns<oneshot::Sender<Slot>>,
    taken: usize,
}

/// The right to run one command. Dropping it passes the right on.
pub struct Slot {
    slots: Slots,
    container: ContainerId,
    bytes: usize,
}

impl Default for Slots {
    fn default() -> Self {
        let turns = Turns::new(MAX_OF_CONTAINER);
        Self(Arc::new(Mutex::new(State { turns, taken: 0 })))
    }
}

impl Slots {
    /// Waits for a slot. `bytes` is the size of the command's input. Fails with
    /// [`EvaluatorError::Busy`] if too many wait. Cancel safe.
    pub async fn take(
        &self,
        container: &ContainerId,
        bytes: usize,
    ) -> Result<Slot, EvaluatorError> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().turns.push(container, sender, bytes)?;
        let mut place = Place {
            slots: self,
            container,
            receiver,
        };
        self.advance();
        // Never fails: only a slot consumes the sender.
        (&mut place.receiver)
            .await
            .map_err(|_| EvaluatorError::Busy)
    }

    /// Gives the free slots to those that wait.
    fn advance(&self) {
        loop {
            let mut state = self.0.lock();
            if state.taken >= MAX_SLOTS {
                return;
            }
            let is_first = state.taken >= MAX_SLOTS - MAX_FIRST;
            let Some((container, waiting, bytes)) = state.turns.begin(is_first) else {
                return;
            };
            state.taken = state.taken.saturating_add(1);
            // Dropping a slot takes the lock.
            drop(state);
            let slots = self.clone();
            // Fails if the caller has just stopped waiting; the slot is then dropped.
            let _ = waiting.send(Slot {
                slots,
                container,
                bytes,
            });
        }
    }
}

/// The place of a caller that waits. Dropping it removes the caller from the queue.
struct Place<'a> {
    slots: &'a Slots,
    container: &'a ContainerId,
    receiver: oneshot::Receiver<Slot>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        let is_wanted = |waiting: &oneshot::Sender<_>| !waiting.is_closed();
        let mut state = self.slots.0.lock();
        state.turns.retain(self.container, is_wanted);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.0.lock();
        state.turns.end(&self.container, self.bytes);
        state.taken = state.taken.saturating_sub(1);
        drop(state);
        self.slots.advance();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::mcp::policy::turns;

    fn container(name: &str) -> ContainerId {
        ContainerId::parse(name).unwrap()
    }

    fn now(slots: &Slots, of: &str) -> Option<Slot> {
        let taken = slots.take(&container(of), 1).now_or_never();
        taken.map(Result::unwrap)
    }

    #[test]
    fn a_container_gets_4_slots_and_all_containers_16_of_which_the_last_4_are_first_ones() {
        let slots = Slots::default();
        let mut taken = Vec::new();
        for of in ["a", "b", "c"] {
            taken.extend((0..4).map(|_| now(&slots, of).unwrap()));
            assert!(now(&slots, of).is_none());
        }
        for number in 0..4 {
            let of = format!("d{number}");
            taken.push(now(&slots, &of).unwrap());
            assert!(now(&slots, &of).is_none(), "the last slots are for others");
        }
        assert!(now(&slots, "e").is_none(), "all slots are taken");
        taken.clear();
        assert!(slots.0.lock().turns.lanes.is_empty());
        assert_eq!(slots.0.lock().taken, 0);
    }

    #[tokio::test]
    async fn a_free_slot_goes_to_the_containers_in_turn_and_not_to_those_that_left() {
        let slots = Slots::default();
        let of_a: Vec<_> = (0..4).map(|_| now(&slots, "a").unwrap()).collect();
        let others: Vec<_> = (0..12)
            .map(|n| now(&slots, &format!("b{n}")).unwrap())
            .collect();
        let (a, b) = (container("a"), container("b"));
        let left = slots.take(&a, 1).now_or_never();
        assert!(left.is_none());
        let mut waiting_a: Vec<_> = (0..3).map(|_| Box::pin(slots.take(&a, 1))).collect();
        let mut waiting_b = Box::pin(slots.take(&b, 1));
        for one in &mut waiting_a {
            assert!((&mut *one).now_or_never().is_none());
        }
        assert!((&mut waiting_b).now_or_never().is_none());
        let mut of_a = of_a.into_iter();
        drop(of_a.next());
        let b = (&mut waiting_b).now_or_never();
        let b = b.expect("the container without a slot is first").unwrap();
        let (first, second) = (waiting_a.remove(0), waiting_a.remove(0));
        drop(others);
        let first = first.now_or_never().expect("a had 3 slots").unwrap();
        let mut second = second;
        assert!((&mut second).now_or_never().is_none(), "a has 4 slots");
        drop((b, first, of_a));
        second.await.unwrap();
    }

    #[test]
    fn those_that_wait_are_limited_in_number_and_bytes() {
        let slots = Slots::default();
        let a = container("a");
        let first: Vec<_> = (0..4).map(|_| now(&slots, "a").unwrap()).collect();
        let refused = slots.take(&a, turns::MAX_BYTES_OF_CONTAINER).now_or_never();
        assert!(matches!(refused, Some(Err(EvaluatorError::Busy))));
        let mut waiting: Vec<_> = (4..turns::MAX_OF_CONTAINER)
            .map(|_| Box::pin(slots.take(&a, 1)))
            .collect();
        for one in &mut waiting {
            assert!((&mut *one).now_or_never().is_none());
        }
        let refused = slots.take(&a, 1).now_or_never();
        assert!(matches!(refused, Some(Err(EvaluatorError::Busy))));
        drop(waiting);
        assert_eq!(
            slots.0.lock().turns.load.jobs,
            4,
            "those that left were removed"
        );
        drop(first);
        assert!(now(&slots, "a").is_some());
        assert!(slots.0.lock().turns.lanes.is_empty());
    }
}
