//! A request under way, with the events of its server.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::super::error::rpc_error;
use super::super::event::{CallState, Event, Events};
use super::super::message::Outcome;
use super::super::message_memory::MessageReservation;
use super::progress::CallProgress;

/// A request under way. Dropping the call cancels the request at its server.
pub struct Call {
    outcome: BoxFuture<'static, Held>,
    events: mpsc::Receiver<Event>,
    done: Option<Held>,
    /// What the client hears of its progress.
    pub progress: CallProgress,
    pub state: Arc<CallState>,
}

/// An outcome, and the memory reserved for it until the events before it are delivered.
type Held = (Outcome, MessageReservation);

/// The next event or the outcome of a call.
pub enum Step {
    Event(Event),
    Done(Outcome),
}

impl Call {
    /// Creates a call from the future of its outcome, the queue of its events, and its progress.
    pub fn new(
        outcome: impl Future<Output = Outcome> + Send + 'static,
        sender: Events,
        events: mpsc::Receiver<Event>,
        progress: CallProgress,
    ) -> Self {
        let state = Arc::clone(&sender.call);
        let held = async move {
            let held = sender.hold(outcome.await);
            held.unwrap_or_else(|denial| (Err(rpc_error(&denial)), MessageReservation::default()))
        };
        Self {
            outcome: Box::pin(held),
            events,
            done: None,
            progress,
            state,
        }
    }

    /// Returns the next event, or the outcome once all events were taken. If the server reports no
    /// progress, the gateway does. Cancel-safe. Must not be called again after the outcome.
    pub async fn next(&mut self) -> Step {
        while self.done.is_none() {
            let event = tokio::select! {
                biased;
                Some(event) = self.events.recv() => self.progress.pass(event),
                outcome = &mut self.outcome => {
                    self.done = Some(outcome);
                    None
                }
                () = self.progress.due() => self.progress.own(),
            };
            if let Some(event) = event {
                return Step::Event(event);
            }
        }
        // Events that precede the outcome are delivered before it.
        if let Some(event) = self.ready_event() {
            return Step::Event(event);
        }
        match self.done.take() {
            Some((outcome, _held)) => Step::Done(outcome),
            None => std::future::pending().await,
        }
    }

    /// The outcome, for a client that takes no events: they are dropped, and a server that asks
    /// something gets an error.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            if let Step::Done(outcome) = self.next().await {
                return outcome;
            }
        }
    }

    /// The next event, if one is queued.
    pub fn ready_event(&mut self) -> Option<Event> {
        while let Ok(event) = self.events.try_recv() {
            if let Some(event) = self.progress.pass(event) {
                return Some(event);
            }
        }
        None
    }
}

#[cfg(test)]
impl Call {
    /// A call whose outcome never comes.
    pub fn pending() -> Self {
        Self {
            outcome: Box::pin(std::future::pending()),
            events: Events::uncharged(1).1,
            done: None,
            progress: CallProgress::new(None),
            state: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use tokio::time::{Instant, sleep};

    use super::super::super::message_memory::Account;
    use super::super::progress::INTERVAL;
    use super::*;

    const LONG: usize = 100_000;

    fn call(sender: Events, events: mpsc::Receiver<Event>) -> Call {
        let of_server = sender.clone();
        let outcome = async move {
            for number in ["1", "2"] {
                let params = RawValue::from_string(number.to_owned()).unwrap();
                let event = Event::Notification {
                    method: "notifications/progress".into(),
                    params: Some(params.into()),
                };
                of_server.send(event).await;
            }
            Ok(serde_json::value::to_raw_value(&"x".repeat(LONG)).unwrap())
        };
        Call::new(outcome, sender, events, CallProgress::new(None))
    }

    #[tokio::test]
    async fn events_sent_before_the_outcome_are_delivered_before_it() {
        let (sender, events) = Events::uncharged(4);
        let mut call = call(sender, events);
        for number in ["1", "2"] {
            match call.next().await {
                Step::Event(Event::Notification { params, .. }) => {
                    assert_eq!(params.unwrap().get(), number);
                }
                _ => panic!("no notification {number}"),
            }
        }
        assert!(matches!(call.next().await, Step::Done(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_token_hears_of_a_call_whose_server_is_silent() {
        let (sender, events) = Events::uncharged(4);
        let began = Instant::now();
        let outcome = async {
            sleep(INTERVAL * 7 / 2).await;
            Ok(RawValue::from_string("{}".to_owned()).unwrap())
        };
        let mut call = Call::new(outcome, sender, events, CallProgress::new(Some("7")));
        for (count, value) in [(1, "0"), (2, "0.000001"), (3, "0.000002")] {
            let expected = format!("{{\"progressToken\":7,\"progress\":{value}}}");
            match call.next().await {
                Step::Event(Event::Notification { params, .. }) => {
                    assert_eq!(params.unwrap().get(), expected);
                }
                _ => panic!("no progress {count}"),
            }
            assert_eq!(began.elapsed(), INTERVAL * count);
        }
        assert!(matches!(call.next().await, Step::Done(Ok(_))));
    }

    #[tokio::test]
    async fn an_outcome_is_charged_while_it_waits_and_replaced_if_memory_is_exhausted() {
        let account = Account::of(2 * LONG);
        let queue = || Events::charged(Arc::clone(&account) as _);
        let ((one, of_one), (two, of_two)) = (queue(), queue());
        let (mut one, mut two) = (call(one, of_one), call(two, of_two));
        assert!(matches!(one.next().await, Step::Event(_)));
        assert!(matches!(one.next().await, Step::Event(_)));
        assert!(account.reserved() > LONG, "{}", account.reserved());
        for _ in ["1", "2"] {
            assert!(matches!(two.next().await, Step::Event(_)));
        }
        assert!(matches!(two.next().await, Step::Done(Err(_))));
        assert!(matches!(one.next().await, Step::Done(Ok(_))));
        assert_eq!(account.reserved(), 0);
    }
}
