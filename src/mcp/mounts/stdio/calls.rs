//! Requests to the server that are under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::mcp::event::{Event, Events};
use crate::mcp::message::Outcome;
use crate::mcp::mounts::{MAX_CALLS, MountError};

/// The method whose answer ends a subscription.
const LISTEN: &str = "subscriptions/listen";
/// While a client is asked, the time of its call is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// What a request is answered with.
pub(super) type Answer = Result<Outcome, MountError>;

/// The requests under way, by the id that we gave them.
#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<u64, Call>>);

struct Call {
    reply: oneshot::Sender<Answer>,
    events: Events,
    /// The progress token of its params, as JSON.
    progress: Option<Box<str>>,
    is_subscription: bool,
    clock: Arc<Clock>,
}

/// Does not run while the server waits for the client.
#[derive(Default)]
pub(super) struct Clock {
    /// Requests to the client that are not answered.
    asked: AtomicUsize,
    last_answer: Mutex<Option<Instant>>,
}

/// Counts a request to the client of a call.
pub(super) struct Asking(Arc<Clock>);

impl Asking {
    fn begin(clock: &Arc<Clock>) -> Self {
        clock.asked.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(clock))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        *self.0.last_answer.lock() = Some(Instant::now());
        self.0.asked.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clock {
    /// Done when the server has had `limit` since the call began, or the client's last answer.
    pub async fn expired(&self, limit: Duration) {
        let mut until = Instant::now() + limit;
        loop {
            sleep_until(until).await;
            if self.asked.load(Ordering::Acquire) > 0 {
                until = Instant::now() + LOOK;
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

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "_meta", borrow)]
    meta: Option<Meta<'a>>,
    #[serde(rename = "progressToken", borrow)]
    progress: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(rename = "progressToken", borrow)]
    progress: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow)]
    subscription: Option<&'a RawValue>,
}

fn read(params: Option<&RawValue>) -> Option<Params<'_>> {
    serde_json::from_str(params?.get()).ok()
}

impl Calls {
    /// Adds a request.
    pub fn add(
        &self,
        id: u64,
        method: &str,
        params: Option<&RawValue>,
        events: Events,
    ) -> Result<(oneshot::Receiver<Answer>, Arc<Clock>), MountError> {
        let (reply, answer) = oneshot::channel();
        let clock = Arc::<Clock>::default();
        let meta = read(params).and_then(|params| params.meta);
        let progress = meta.and_then(|meta| meta.progress);
        let call = Call {
            reply,
            events,
            progress: progress.map(|token| token.get().into()),
            is_subscription: method == LISTEN,
            clock: Arc::clone(&clock),
        };
        let mut calls = self.0.lock();
        if calls.len() >= MAX_CALLS as usize {
            return Err(MountError::Busy);
        }
        calls.insert(id, call);
        Ok((answer, clock))
    }

    /// Whether the request was still under way.
    pub fn remove(&self, id: u64) -> bool {
        self.0.lock().remove(&id).is_some()
    }

    /// Answers a request; whether there was one.
    pub fn answer(&self, id: u64, answer: Answer) -> bool {
        let call = self.0.lock().remove(&id);
        // Whoever asked may have gone.
        call.is_some_and(|call| call.reply.send(answer).is_ok())
    }

    /// Answers all of them.
    pub fn end(&self, error: &MountError) {
        let calls = std::mem::take(&mut *self.0.lock());
        for call in calls.into_values() {
            let _ = call.reply.send(Err(error.clone()));
        }
    }

    /// Where a notification goes: to the call that its progress token or subscription names; else,
    /// if it `may_belong` to one that it does not name, to the only call under way.
    pub fn events_of(&self, params: Option<&RawValue>, may_belong: bool) -> Option<Events> {
        let calls = self.0.lock();
        let named = read(params);
        let subscription = named
            .as_ref()
            .and_then(|params| params.meta.as_ref()?.subscription);
        if let Some(id) = subscription {
            return Some(calls.get(&id.get().parse().ok()?)?.events.clone());
        }
        if let Some(token) = named.and_then(|params| params.progress) {
            let has_it = |call: &&Call| call.progress.as_deref() == Some(token.get());
            return Some(calls.values().find(has_it)?.events.clone());
        }
        if !may_belong {
            return None;
        }
        Some(only(&calls)?.events.clone())
    }

    /// The only call under way, whose client the server asks: its events, and what keeps its clock
    /// from running.
    pub fn ask_only(&self) -> Option<(Events, Asking)> {
        let calls = self.0.lock();
        let call = only(&calls)?;
        Some((call.events.clone(), Asking::begin(&call.clock)))
    }
}

/// The only call that is no subscription.
fn only(calls: &HashMap<u64, Call>) -> Option<&Call> {
    let mut calls = calls.values().filter(|call| !call.is_subscription);
    let first = calls.next()?;
    calls.next().is_none().then_some(first)
}

/// Sends a notification; drops it where the queue is full.
pub(super) fn notify(events: &Events, method: &Arc<str>, params: Option<Box<RawValue>>) {
    let event = Event::Notification {
        method: Arc::clone(method),
        params,
    };
    if events.try_send(event).is_err() {
        tracing::debug!(%method, "a notification of an MCP server was dropped");
    }
}

/// Whether a request has no answer within a time that a call may take.
pub(super) fn is_subscription(method: &str) -> bool {
    method == LISTEN
}
