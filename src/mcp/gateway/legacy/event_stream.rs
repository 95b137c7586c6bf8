//! A resumable stream of events of a legacy session. The stream outlives its connections.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use addons::contract::Verdict;
use bytes::Bytes;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::super::memory::Memory;
use super::super::sse::{self, KEEP_ALIVE_INTERVAL};

/// Limit on the events that one stream keeps for a client that reconnects.
pub const MAX_EVENTS: usize = 64;
/// Limit on the bytes of events that one stream keeps.
pub const MAX_BYTES: usize = 256 * 1024;
/// Limit on the bytes that all streams of a lease keep together.
pub const MAX_LEASE_BYTES: usize = 8 << 20;
/// How long a stream waits for a client that disconnected: long enough for several retries or a
/// change of network.
pub const RESUME_WITHIN: Duration = Duration::from_secs(60);

/// Bytes that all streams of a lease keep together.
pub type KeptBytes = Arc<AtomicUsize>;

/// A stream with at most one reader: a second one replaces the first. Over [`MAX_EVENTS`],
/// [`MAX_BYTES`] or [`MAX_LEASE_BYTES`], the stream drops its oldest events, except those that a
/// connected client has not read yet. A writer then waits until the client has read them.
pub struct EventStream {
    /// Number of the stream within the session.
    pub number: u64,
    /// Whether events have ids, for resuming.
    has_ids: bool,
    kept: KeptBytes,
    state: Mutex<State>,
    /// Notified when a reader attaches, detaches or takes an event.
    changed: Notify,
}

struct State {
    /// The newest events, read and unread.
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The number of the next event to be written.
    next: u64,
    /// The number of the next event to be read.
    cursor: u64,
    /// Number of the newest reader. Readers with lower numbers were replaced.
    newest_reader: u64,
    has_reader: bool,
    /// When the newest reader was dropped or, if there was no reader yet, when the stream was
    /// created.
    left: Instant,
    finished: bool,
    waker: Option<Waker>,
}

impl EventStream {
    /// Creates a stream. With `primed`, its first event is [`sse::priming`].
    pub fn new(number: u64, has_ids: bool, primed: bool, kept: KeptBytes) -> Arc<Self> {
        let stream = Self {
            number,
            has_ids,
            kept,
            state: Mutex::new(State {
                events: VecDeque::new(),
                bytes: 0,
                next: 0,
                cursor: 0,
                newest_reader: 0,
                has_reader: false,
                left: Instant::now(),
                finished: false,
                waker: None,
            }),
            changed: Notify::new(),
        };
        if primed {
            stream.write(|id| sse::priming(id.unwrap_or_default()));
        }
        Arc::new(stream)
    }

    /// Writes a message. Waits while a connected client has too many unread events. Without a
    /// connected client, drops the oldest events over a limit instead. The message is charged to
    /// the memory for buffered bodies, also while it waits. Fails if that memory is exhausted.
    pub async fn push(&self, json: &str, memory: &Memory) -> Verdict {
        let charge = memory.reserve(json.len())?;
        loop {
            let changed = self.changed.notified();
            if self.has_room(json.len()) {
                break;
            }
            changed.await;
        }
        self.write(|id| charge.hold(sse::message(id, json)));
        Ok(())
    }

    /// Writes an event without waiting.
    pub fn push_event(&self, event: Bytes) {
        self.write(|_| event);
    }

    /// Ends the stream: the reader ends after the last event.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        state.finished = true;
        wake(&mut state);
    }

    /// Whether the stream has ended and had no reader for [`RESUME_WITHIN`].
    pub fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.finished && !state.has_reader && state.left.elapsed() >= RESUME_WITHIN
    }

    /// Whether the stream has ended.
    pub fn is_finished(&self) -> bool {
        self.state.lock().finished
    }

    /// Whether a client is connected.
    pub fn has_reader(&self) -> bool {
        self.state.lock().has_reader
    }

    /// Waits until no client is connected.
    pub async fn without_reader(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.has_reader() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until no client has been connected for [`RESUME_WITHIN`].
    pub async fn abandoned(&self) {
        loop {
            let changed = self.changed.notified();
            let left = {
                let state = self.state.lock();
                (!state.has_reader).then_some(state.left)
            };
            match left {
                None => changed.await,
                Some(left) if left.elapsed() >= RESUME_WITHIN => return,
                Some(left) => {
                    let _ = tokio::time::timeout_at(left + RESUME_WITHIN, changed).await;
                }
            }
        }
    }

    /// Attaches a reader that resumes after the event with the number `after` or, if `None`, after
    /// the last event that was read. Events that were dropped meanwhile are skipped. The reader
    /// ends when `stopping` is cancelled.
    pub fn read(self: &Arc<Self>, after: Option<u64>, stopping: CancellationToken) -> Reader {
        let mut state = self.state.lock();
        state.newest_reader += 1;
        state.has_reader = true;
        if let Some(after) = after {
            state.cursor = after.saturating_add(1).min(state.next);
        }
        let number = state.newest_reader;
        wake(&mut state);
        drop(state);
        self.changed.notify_waiters();
        Reader {
            stream: Arc::clone(self),
            number,
            keep_alive: Box::pin(sleep(KEEP_ALIVE_INTERVAL)),
            stopping: Box::pin(stopping.cancelled_owned()),
        }
    }

    /// Whether a message can be written now: no client is connected, or the unread events leave
    /// room, in this stream and in the lease. If all events have been read, a message of any length
    /// fits. So the messages that wait for clients that do not read are bounded for a lease, also
    /// the short ones, which are not charged.
    fn has_room(&self, length: usize) -> bool {
        let state = self.state.lock();
        let unread = state.events.iter().filter(|(at, _)| *at >= state.cursor);
        let (count, bytes) = unread.fold((0, 0_usize), |(count, bytes), (_, event)| {
            (count + 1, bytes.saturating_add(event.len()))
        });
        let kept = self.kept.load(Ordering::Relaxed);
        let fits = |bytes: usize, most| bytes.saturating_add(length) <= most;
        !state.has_reader
            || count == 0
            || (count < MAX_EVENTS && fits(bytes, MAX_BYTES) && fits(kept, MAX_LEASE_BYTES))
    }

    fn write(&self, event: impl FnOnce(Option<&str>) -> Bytes) {
        let mut state = self.state.lock();
        let number = state.next;
        let id = self.has_ids.then(|| format!("{}-{number}", self.number));
        let event = event(id.as_deref());
        state.next += 1;
        state.bytes += event.len();
        self.kept.fetch_add(event.len(), Ordering::Relaxed);
        state.events.push_back((number, event));
        self.trim(&mut state);
        wake(&mut state);
    }

    /// Drops the oldest events over a limit, except events that a connected client has not read.
    /// [`EventStream::push`] bounds the unread events.
    fn trim(&self, state: &mut State) {
        let over = |state: &State| {
            state.events.len() > MAX_EVENTS
                || state.bytes > MAX_BYTES
                || self.kept.load(Ordering::Relaxed) > MAX_LEASE_BYTES
        };
        while over(state) {
            let Some((number, event)) = state.events.pop_front() else {
                return;
            };
            if state.has_reader && number >= state.cursor {
                state.events.push_front((number, event));
                return;
            }
            state.bytes = state.bytes.saturating_sub(event.len());
            self.kept.fetch_sub(event.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        let bytes = self.state.get_mut().bytes;
        self.kept.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn wake(state: &mut State) {
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}

/// Reads a stream on one connection.
pub struct Reader {
    stream: Arc<EventStream>,
    number: u64,
    keep_alive: Pin<Box<Sleep>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

enum Next {
    Event(Bytes),
    Wait,
    End,
}

impl Reader {
    fn take(&self, context: &Context<'_>) -> Next {
        let mut state = self.stream.state.lock();
        if state.newest_reader != self.number {
            return Next::End;
        }
        let cursor = state.cursor;
        let found = state.events.iter().find(|(number, _)| *number >= cursor);
        if let Some((number, event)) = found {
            let (number, event) = (*number, event.clone());
            state.cursor = number + 1;
            self.stream.trim(&mut state);
            return Next::Event(event);
        }
        if state.finished {
            return Next::End;
        }
        state.waker = Some(context.waker().clone());
        Next::Wait
    }
}

impl Stream for Reader {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.take(context) {
            Next::Event(event) => {
                self.stream.changed.notify_waiters();
                let next = Instant::now() + KEEP_ALIVE_INTERVAL;
                self.keep_alive.as_mut().reset(next);
                return Poll::Ready(Some(event));
            }
            Next::End => return Poll::Ready(None),
            Next::Wait => {}
        }
        if self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if self.keep_alive.as_mut().poll(context).is_ready() {
            let next = Instant::now() + KEEP_ALIVE_INTERVAL;
            self.keep_alive.as_mut().reset(next);
            // Only a polled timer wakes the task.
            let _ = self.keep_alive.as_mut().poll(context);
            return Poll::Ready(Some(sse::KEEP_ALIVE));
        }
        Poll::Pending
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        if state.newest_reader != self.number {
            return;
        }
        state.has_reader = false;
        state.left = Instant::now();
        state.waker = None;
        self.stream.trim(&mut state);
        drop(state);
        self.stream.changed.notify_waiters();
    }
}

#[cfg(test)]
#[path = "tests/event_stream.rs"]
mod tests;
