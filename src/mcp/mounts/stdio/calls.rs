//! Tracks requests to the server that are under way.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::mcp::event::Events;
use crate::mcp::message::Outcome;
use crate::mcp::mounts::related::Related;
use crate::mcp::mounts::{MAX_CALLS, MessageReservation, MountError};

/// The method of a subscription, which lasts until the server answers the request.
const LISTEN: &str = "subscriptions/listen";

/// The answer to a request.
pub(super) type Answer = Result<Outcome, MountError>;

/// The requests under way, by the id that the gateway assigned.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<u64, Call>>);

/// An answer, and the reservation of its memory, which is held until the caller takes the answer.
type Held = Result<(Outcome, MessageReservation), MountError>;

struct Call {
    reply: oneshot::Sender<Held>,
    events: Events,
    /// The progress token in the params of the request, as JSON.
    progress: Option<Box<str>>,
    is_subscription: bool,
    /// Whether the request has a log level in its `_meta` (modern era).
    wants_logs: bool,
}

impl Calls {
    /// Adds a request. Returns the receiver of its answer; fails if [`MAX_CALLS`] requests are
    /// under way.
    pub fn add(
        &self,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
    ) -> Result<oneshot::Receiver<Held>, MountError> {
        let (reply, answer) = oneshot::channel();
        let meta = Related::read(params).meta;
        let call = Call {
            reply,
            events,
            progress: meta.progress.map(|token| token.get().into()),
            is_subscription: method == LISTEN,
            wants_logs: meta.log_level.is_some(),
        };
        let mut calls = self.0.lock();
        if calls.len() >= MAX_CALLS as usize {
            return Err(MountError::Busy);
        }
        calls.insert(id, call);
        Ok(answer)
    }

    /// Removes a request; returns whether it was still under way.
    pub fn remove(&self, id: u64) -> bool {
        self.0.lock().remove(&id).is_some()
    }

    /// Answers a request; returns `false` if its id is unknown or its caller was dropped. The
    /// request fails if memory is exhausted.
    pub fn answer(&self, id: u64, answer: Answer) -> bool {
        let call = self.0.lock().remove(&id);
        call.is_some_and(|call| {
            let hold = |outcome| call.events.hold(outcome).map_err(MountError::Denied);
            call.reply.send(answer.and_then(hold)).is_ok()
        })
    }

    /// Fails all requests with this error.
    pub fn end(&self, error: &MountError) {
        let calls = std::mem::take(&mut *self.0.lock());
        for call in calls.into_values() {
            let _ = call.reply.send(Err(error.clone()));
        }
    }

    /// The queue of the call that a notification names by its progress token or its subscription;
    /// `None` if it names no call under way.
    pub fn named(&self, params: Option<&RawValue>) -> Option<Events> {
        let calls = self.0.lock();
        let related = Related::read(params);
        if let Some(id) = related.meta.subscription {
            return Some(calls.get(&id.get().parse().ok()?)?.events.clone());
        }
        let token = related.progress?.get();
        let has_it = |call: &&Call| call.progress.as_deref() == Some(token);
        Some(calls.values().find(has_it)?.events.clone())
    }

    /// The queue of the call that a log message belongs to. Since the message does not name its
    /// call, chooses the only call with a log level. If no call has a log level, chooses the only
    /// call that is not a subscription. `None` if several calls qualify, or none.
    pub fn logging(&self) -> Option<Events> {
        let calls = self.0.lock();
        let mut wanting = calls.values().filter(|call| call.wants_logs);
        let call = match (wanting.next(), wanting.next()) {
            (Some(call), None) => Some(call),
            (Some(_), Some(_)) => None,
            (None, _) => only(&calls),
        };
        Some(call?.events.clone())
    }

    /// The queue of the only call that is not a subscription, for a request of the server to the
    /// call's client. `None` if there are several such calls, or none.
    pub fn for_request(&self) -> Option<Events> {
        let calls = self.0.lock();
        Some(only(&calls)?.events.clone())
    }
}

/// The only call that is not a subscription; `None` if there are several or none.
fn only(calls: &HashMap<u64, Call>) -> Option<&Call> {
    let mut calls = calls.values().filter(|call| !call.is_subscription);
    let first = calls.next()?;
    calls.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use testkit::each_row;

    use crate::mcp::message_memory::Account;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_waits_for_its_caller_is_charged_and_one_beyond_the_limit_is_denied() {
        const LONG: usize = 100_000;
        let account = Account::of(2 * LONG);
        let calls = Calls::default();
        let begin = |id| {
            let (events, _receiver) = Events::charged(Arc::clone(&account) as _);
            calls.add(id, "tools/call", None, events).unwrap()
        };
        let (one, two) = (begin(1), begin(2));
        let answer = || serde_json::value::to_raw_value(&"x".repeat(LONG)).unwrap();
        for id in [1, 2] {
            assert!(calls.answer(id, Ok(Ok(answer()))));
        }
        assert!(account.reserved() > LONG, "{}", account.reserved());
        assert!(matches!(two.await.unwrap(), Err(MountError::Denied(_))));
        drop(one);
        assert_eq!(account.reserved(), 0);
    }

    const QUIET: &str = "{\"_meta\":{}}";
    const LOGGED: &str = "{\"_meta\":{\"io.modelcontextprotocol/logLevel\":\"info\"}}";

    #[test]
    fn a_log_message_goes_to_the_only_call_that_may_have_caused_it() {
        each_row(
            [
                (&[QUIET][..], Some(0)),
                (&[QUIET, QUIET], None),
                (&[QUIET, LOGGED, QUIET], Some(1)),
                (&[LOGGED, LOGGED], None),
                (&[], None),
            ],
            |(requests, taker)| {
                let calls = Calls::default();
                let begin = |(id, params): (usize, &&str)| {
                    let (events, receiver) = Events::uncharged(1);
                    let params = RawValue::from_string((*params).to_owned()).unwrap();
                    let begun = calls.add(id as u64, "tools/call", Some(&params), events.clone());
                    (begun.unwrap(), events, receiver)
                };
                let begun: Vec<_> = requests.iter().enumerate().map(begin).collect();
                let events = calls.logging();
                let found = events.map(|found| {
                    let of = |(_, events, _): &(_, Events, _)| events.same_channel(&found);
                    begun.iter().position(of).unwrap()
                });
                assert_eq!(found, taker);
            },
        );
    }
}
