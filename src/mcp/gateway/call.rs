//! A request under way, with the events of its server.

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::super::event::Event;
use super::super::message::Outcome;

/// A request under way. Dropping this cancels the request at its server.
pub struct Call {
    outcome: BoxFuture<'static, Outcome>,
    events: mpsc::Receiver<Event>,
    done: Option<Outcome>,
}

/// The next event or the outcome of a call.
pub enum Step {
    Event(Event),
    Done(Outcome),
}

impl Call {
    /// Creates a call from the future of its outcome and the queue of its events.
    pub fn new(outcome: BoxFuture<'static, Outcome>, events: mpsc::Receiver<Event>) -> Self {
        Self {
            outcome,
            events,
            done: None,
        }
    }

    /// Returns the next event, or the outcome once all events were taken. Cancel-safe. Must not be
    /// called again after the outcome.
    pub async fn next(&mut self) -> Step {
        if self.done.is_none() {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => return Step::Event(event),
                outcome = &mut self.outcome => self.done = Some(outcome),
            }
        }
        // Events that precede the outcome are delivered before it.
        if let Ok(event) = self.events.try_recv() {
            return Step::Event(event);
        }
        match self.done.take() {
            Some(outcome) => Step::Done(outcome),
            None => std::future::pending().await,
        }
    }

    /// The next event, if one is queued.
    pub fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

#[cfg(test)]
impl Call {
    /// A call whose outcome never comes.
    pub fn pending() -> Self {
        Self {
            outcome: Box::pin(std::future::pending()),
            events: super::super::event::Events::uncharged(1).1,
            done: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::super::super::event::Events;
    use super::super::super::message::Outcome;
    use super::*;

    fn call(sender: Events, events: mpsc::Receiver<Event>) -> Call {
        let outcome = async move {
            for number in ["1", "2"] {
                let params = RawValue::from_string(number.to_owned()).unwrap();
                let method = "notifications/progress".into();
                let event = Event::Notification {
                    method,
                    params: Some(params.into()),
                };
                sender.send(event).await;
            }
            Outcome::Ok(RawValue::from_string("{}".to_owned()).unwrap())
        };
        Call {
            outcome: Box::pin(outcome),
            events,
            done: None,
        }
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
}
