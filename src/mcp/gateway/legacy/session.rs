//! A session that begins with `initialize` and belongs to one lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::super::caller::Caller;
use super::super::super::message::{Id, Outcome};
use super::super::limits::{Counted, MAX_CALLS, MAX_KEPT_STREAMS, MAX_OPEN_INPUT_REQUESTS};
use super::event_stream::{EventStream, KeptBytes};

pub struct LegacySession {
    /// 128 random bits in hexadecimal.
    pub id: Arc<str>,
    /// Cancelled when the session ends: by DELETE, with its lease, with its only stream (HTTP+SSE),
    /// or to make room for another session.
    pub ended: CancellationToken,
    pub transport: Transport,
    /// The client; set by `initialize`.
    caller: OnceLock<Arc<Caller>>,
    /// Counts the bytes that all streams of the lease keep.
    kept: KeptBytes,
    /// When a request last named the session, or a call of the session last ended.
    used: Mutex<Instant>,
    /// Requests of the client that are under way, by their ids.
    calls: Mutex<HashMap<Id, CancellationToken>>,
    /// Requests to the client that wait for an answer, by their ids, which are numbers.
    input_requests: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    next_number: AtomicU64,
    streams: Mutex<Streams>,
    _counted: Counted,
}

#[derive(Default)]
struct Streams {
    next: u64,
    /// The stream for messages outside requests.
    standalone: Option<Arc<EventStream>>,
    /// The streams of requests, oldest first.
    of_calls: Vec<Arc<EventStream>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Each request has its own HTTP response (2025-03-26 and later).
    StreamableHttp,
    /// All messages to the client use one stream (2024-11-05).
    HttpSse,
}

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// Another request with this id is under way.
    SameId,
    /// [`MAX_CALLS`] requests are under way.
    TooMany,
}

impl LegacySession {
    /// Creates a session, before `initialize`.
    pub fn new(id: &str, transport: Transport, kept: KeptBytes, counted: Counted) -> Arc<Self> {
        Arc::new(Self {
            id: id.into(),
            transport,
            ended: CancellationToken::new(),
            caller: OnceLock::new(),
            kept,
            used: Mutex::new(Instant::now()),
            calls: Mutex::default(),
            input_requests: Mutex::default(),
            next_number: AtomicU64::new(1),
            streams: Mutex::default(),
            _counted: counted,
        })
    }

    /// The client; `None` before `initialize`.
    pub fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.get()
    }

    /// Sets the client; `false` if an earlier `initialize` set it.
    pub fn initialize(&self, caller: Arc<Caller>) -> bool {
        self.caller.set(caller).is_ok()
    }

    /// Marks the session as used now.
    pub fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Time of the last use; `None` while a request is under way or a client reads a stream.
    pub fn idle_since(&self) -> Option<Instant> {
        let streams = self.streams.lock();
        let standalone = streams.standalone.iter();
        let is_read = standalone
            .chain(&streams.of_calls)
            .any(|one| one.has_reader());
        drop(streams);
        let is_idle = !is_read && self.calls.lock().is_empty();
        is_idle.then(|| *self.used.lock())
    }

    /// Registers a request of the client.
    pub fn begin_call(self: &Arc<Self>, id: &Id) -> Result<CallGuard, NotBegun> {
        let mut calls = self.calls.lock();
        if calls.contains_key(id) {
            return Err(NotBegun::SameId);
        }
        if calls.len() >= MAX_CALLS {
            return Err(NotBegun::TooMany);
        }
        let cancelled = self.ended.child_token();
        calls.insert(id.clone(), cancelled.clone());
        drop(calls);
        Ok(CallGuard {
            session: Arc::clone(self),
            id: id.clone(),
            cancelled,
        })
    }

    /// Cancels a request of the client, if it is under way.
    pub fn cancel_call(&self, id: &Id) {
        if let Some(cancelled) = self.calls.lock().get(id) {
            cancelled.cancel();
        }
    }

    /// Registers a request to the client; `None` at [`MAX_OPEN_INPUT_REQUESTS`].
    pub fn register_input_request(&self) -> Option<(u64, oneshot::Receiver<Outcome>)> {
        let mut input_requests = self.input_requests.lock();
        if input_requests.len() >= MAX_OPEN_INPUT_REQUESTS {
            return None;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        input_requests.insert(number, sender);
        Some((number, receiver))
    }

    /// Passes on the client's answer; `false` if the request is unknown, was answered before, or
    /// its server stopped waiting.
    pub fn answered(&self, id: &Id, outcome: Outcome) -> bool {
        let number = id.as_json().parse::<u64>().ok();
        let asked = number.and_then(|number| self.input_requests.lock().remove(&number));
        asked.is_some_and(|asked| asked.send(outcome).is_ok())
    }

    /// Forgets a request that the client need not answer any more; `false` if it is unknown.
    pub fn withdraw(&self, number: u64) -> bool {
        self.input_requests.lock().remove(&number).is_some()
    }

    /// The stream for messages outside requests; `true` if it is new.
    pub fn standalone(&self, has_ids: bool, primed: bool) -> (Arc<EventStream>, bool) {
        let mut streams = self.streams.lock();
        if let Some(open) = streams.standalone.as_ref().filter(|one| !one.is_finished()) {
            return (Arc::clone(open), false);
        }
        let stream = self.stream(&mut streams, has_ids, primed);
        streams.standalone = Some(Arc::clone(&stream));
        (stream, true)
    }

    /// Opens a stream for a request. If [`MAX_KEPT_STREAMS`] finished streams are kept, first drops
    /// the oldest of these that no client reads.
    pub fn stream_of_call(&self, primed: bool) -> Arc<EventStream> {
        let mut streams = self.streams.lock();
        streams.of_calls.retain(|stream| !stream.is_over());
        let kept = streams
            .of_calls
            .iter()
            .filter(|stream| stream.is_finished());
        let mut surplus = (kept.count() + 1).saturating_sub(MAX_KEPT_STREAMS);
        streams.of_calls.retain(|stream| {
            let goes = surplus > 0 && stream.is_finished() && !stream.has_reader();
            surplus -= usize::from(goes);
            !goes
        });
        let stream = self.stream(&mut streams, true, primed);
        streams.of_calls.push(Arc::clone(&stream));
        stream
    }

    pub fn find_stream(&self, number: u64) -> Option<Arc<EventStream>> {
        let streams = self.streams.lock();
        let mut all = streams.standalone.iter().chain(&streams.of_calls);
        all.find(|stream| stream.number == number).cloned()
    }

    fn stream(&self, streams: &mut Streams, has_ids: bool, primed: bool) -> Arc<EventStream> {
        let number = streams.next;
        streams.next += 1;
        EventStream::new(number, has_ids, primed, Arc::clone(&self.kept))
    }
}

/// Guard of a client's request. The request counts as under way until the guard is dropped.
pub struct CallGuard {
    session: Arc<LegacySession>,
    id: Id,
    /// Cancelled by the client, or by the session's end.
    pub cancelled: CancellationToken,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.session.calls.lock().remove(&self.id);
        self.session.touch();
    }
}
