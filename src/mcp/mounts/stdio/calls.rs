//! Tracks requests to the server that are under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::mcp::event::Events;
use crate::mcp::message::Outcome;
use crate::mcp::mounts::related::Related;
use crate::mcp::mounts::{MAX_CALLS, MountError};

/// The method of a subscription, which lasts until the server answers the request.
const LISTEN: &str = "subscriptions/listen";
/// Interval of deadline checks while the server waits for the client.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The answer to a request.
pub(super) type Answer = Result<Outcome, MountError>;

/// The requests under way, by the id that the gateway assigned.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<u64, Call>>);

struct Call {
    reply: oneshot::Sender<Answer>,
    events: Events,
    /// The progress token in the params of the request, as JSON.
    progress: Option<Box<str>>,
    is_subscription: bool,
    /// Whether the request has a log level in its `_meta` (modern era).
    wants_logs: bool,
    clock: Arc<Clock>,
}

/// The clock of a call, which stops while the server waits for the client.
#[derive(Default)]
pub(super) struct Clock {
    /// Number of unanswered requests to the client.
    open_requests: AtomicUsize,
    last_answer: Mutex<Option<Instant>>,
}

/// Guard that stops the clock of a call while a request to its client is open.
pub(super) struct StoppedClock(Arc<Clock>);

impl StoppedClock {
    fn begin(clock: &Arc<Clock>) -> Self {
        clock.open_requests.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(clock))
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        *self.0.last_answer.lock() = Some(Instant::now());
        self.0.open_requests.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clock {
    /// Waits until no request to the client is open and `limit` has passed since the first poll and
    /// since the client's last answer.
    pub async fn expired(&self, limit: Duration) {
        let mut until = Instant::now() + limit;
        loop {
            sleep_until(until).await;
            if self.open_requests.load(Ordering::Acquire) > 0 {
                until = Instant::now() + CHECK_INTERVAL;
                continue;
            }
            let last_answer = *self.last_answer.lock();
            match last_answer.map(|at| at + limit) {
                Some(later) if later > Instant::now() => until = later,
                _ => return,
            }
        }
    }
}

impl Calls {
    /// Adds a request. Returns the receiver of its answer and its clock; fails if [`MAX_CALLS`]
    /// requests are under way.
    pub fn add(
        &self,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
    ) -> Result<(oneshot::Receiver<Answer>, Arc<Clock>), MountError> {
        let (reply, answer) = oneshot::channel();
        let clock = Arc::<Clock>::default();
        let meta = Related::read(params).meta;
        let call = Call {
            reply,
            events,
            progress: meta.progress.map(|token| token.get().into()),
            is_subscription: method == LISTEN,
            wants_logs: meta.log_level.is_some(),
            clock: Arc::clone(&clock),
        };
        let mut calls = self.0.lock();
        if calls.len() >= MAX_CALLS as usize {
            return Err(MountError::Busy);
        }
        calls.insert(id, call);
        Ok((answer, clock))
    }

    /// Removes a request; returns whether it was still under way.
    pub fn remove(&self, id: u64) -> bool {
        self.0.lock().remove(&id).is_some()
    }

    /// Answers a request; returns `false` if it is unknown or its caller was dropped.
    pub fn answer(&self, id: u64, answer: Answer) -> bool {
        let call = self.0.lock().remove(&id);
        // The caller may have stopped waiting.
        call.is_some_and(|call| call.reply.send(answer).is_ok())
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
    /// call, chooses the only call with a log level or, if no call has one, the only call under
    /// way. `None` if there is not exactly one.
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

    /// The queue of the only call under way, for a request of the server to the call's client, and
    /// a guard that stops the call's clock. `None` if there is not exactly one call.
    pub fn for_request(&self) -> Option<(Events, StoppedClock)> {
        let calls = self.0.lock();
        let call = only(&calls)?;
        Some((call.events.clone(), StoppedClock::begin(&call.clock)))
    }
}

/// The only call that is not a subscription; `None` if there are several or none.
fn only(calls: &HashMap<u64, Call>) -> Option<&Call> {
    let mut calls = calls.values().filter(|call| !call.is_subscription);
    let first = calls.next()?;
    calls.next().is_none().then_some(first)
}

/// Whether a request opens a subscription, which has no time limit.
pub(super) fn is_subscription(method: &str) -> bool {
    method == LISTEN
}

#[cfg(test)]
mod tests {
    use testkit::each_row;
    use tokio::sync::mpsc;

    use super::*;

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
                    let (events, receiver) = mpsc::channel(1);
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
