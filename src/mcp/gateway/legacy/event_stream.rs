//! One stream of events of a legacy session, which outlives the connections that it is read on.

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
use super::super::sse;

/// Events of one stream that are kept for a client that comes back.
pub const MAX_EVENTS: usize = 64;
/// Their bytes, of one stream.
pub const MAX_BYTES: usize = 256 * 1024;
/// The bytes that all streams of a lease keep.
pub const MAX_LEASE_BYTES: usize = 8 << 20;
/// How long a stream waits for a client that went away: some retries, and a laptop that changes
/// its network.
pub const RESUME_WITHIN: Duration = Duration::from_secs(60);
/// How often a quiet stream sends a comment: less than the time-outs of proxies and load
/// balancers, which begin at 30 s.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Bytes that the streams of a lease keep, all together.
pub type KeptBytes = Arc<AtomicUsize>;

/// Events in their order. There is at most one reader: a second takes the first one's place.
pub struct EventStream {
    /// Tells it from the session's other streams.
    pub number: u64,
    named: bool,
    kept: KeptBytes,
    state: Mutex<State>,
    /// A reader came or went, or took an event.
    changed: Notify,
}

struct State {
    /// The newest events, those that were read and those that were not.
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The number of the next event to be written.
    next: u64,
    /// The number of the next event to be read.
    cursor: u64,
    /// Counts readers, so that one that was replaced knows.
    readers: u64,
    has_reader: bool,
    left: Instant,
    finished: bool,
    waker: Option<Waker>,
}

impl EventStream {
    /// A stream without events. `named` streams give each event an id to come back with; the
    /// first is one without data, where `primed`.
    pub fn new(number: u64, named: bool, primed: bool, kept: KeptBytes) -> Arc<Self> {
        let stream = Self {
            number,
            named,
            kept,
            state: Mutex::new(State {
                events: VecDeque::new(),
                bytes: 0,
                next: 0,
                cursor: 0,
                readers: 0,
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

    /// Writes a message. Waits while the client that reads is too far behind; where no client
    /// reads, the oldest events give way. Fails where there is no memory for it.
    pub async fn push(&self, json: &str, memory: &Memory) -> Verdict {
        loop {
            let changed = self.changed.notified();
            if self.has_room(json.len()) {
                let charge = memory.reserve(json.len())?;
                self.write(|id| charge.hold(sse::message(id, json)));
                return Ok(());
            }
            changed.await;
        }
    }

    /// Writes an event that is ready, whatever the client has read.
    pub fn push_event(&self, event: Bytes) {
        self.write(|_| event);
    }

    /// Nothing more will be written: readers end once they have read all.
    pub fn finish(&self) {
        let mut state = self.state.lock();
        state.finished = true;
        wake(&mut state);
    }

    /// Whether nothing more will be written and no client has read it for [`RESUME_WITHIN`].
    pub fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.finished && !state.has_reader && state.left.elapsed() >= RESUME_WITHIN
    }

    /// Whether nothing more will be written.
    pub fn is_finished(&self) -> bool {
        self.state.lock().finished
    }

    /// Whether a client reads it.
    pub fn has_reader(&self) -> bool {
        self.state.lock().has_reader
    }

    /// Ends when no client has read it for [`RESUME_WITHIN`].
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

    /// Reads on: after the event with this number, or where the last reader stopped. Ends with
    /// `stopping`.
    pub fn read(self: &Arc<Self>, after: Option<u64>, stopping: CancellationToken) -> Reader {
        let mut state = self.state.lock();
        state.readers += 1;
        state.has_reader = true;
        if let Some(after) = after {
            state.cursor = after.saturating_add(1).min(state.next);
        }
        let reader = state.readers;
        wake(&mut state);
        drop(state);
        self.changed.notify_waiters();
        Reader {
            stream: Arc::clone(self),
            reader,
            keep_alive: Box::pin(sleep(KEEP_ALIVE)),
            stopping: Box::pin(stopping.cancelled_owned()),
        }
    }

    /// Whether the reader is not too far behind for another message. One message always fits.
    fn has_room(&self, length: usize) -> bool {
        let state = self.state.lock();
        let unread = state.events.iter().filter(|(at, _)| *at >= state.cursor);
        let (count, bytes) = unread.fold((0, 0_usize), |(count, bytes), (_, event)| {
            (count + 1, bytes.saturating_add(event.len()))
        });
        !state.has_reader
            || count == 0
            || (count < MAX_EVENTS && bytes.saturating_add(length) <= MAX_BYTES)
    }

    fn write(&self, event: impl FnOnce(Option<&str>) -> Bytes) {
        let mut state = self.state.lock();
        let number = state.next;
        let id = self.named.then(|| format!("{}-{number}", self.number));
        let event = event(id.as_deref());
        state.next += 1;
        state.bytes += event.len();
        self.kept.fetch_add(event.len(), Ordering::Relaxed);
        state.events.push_back((number, event));
        self.trim(&mut state);
        wake(&mut state);
    }

    /// Forgets the oldest events that are over a bound. What a connected client has not read yet
    /// stays, since [`EventStream::push`] bounds it.
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

/// Reads a stream on one connection. Dropped with it; the stream goes on.
pub struct Reader {
    stream: Arc<EventStream>,
    reader: u64,
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
        if state.readers != self.reader {
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
                let next = Instant::now() + KEEP_ALIVE;
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
            let next = Instant::now() + KEEP_ALIVE;
            self.keep_alive.as_mut().reset(next);
            // Registers the timer again.
            let _ = self.keep_alive.as_mut().poll(context);
            return Poll::Ready(Some(sse::KEEP_ALIVE));
        }
        Poll::Pending
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        if state.readers != self.reader {
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
mod tests {
    use futures_util::StreamExt;
    use tokio::time::{advance, timeout};

    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    fn stream(primed: bool) -> Arc<EventStream> {
        EventStream::new(3, true, primed, KeptBytes::default())
    }

    async fn push(stream: &EventStream, json: &str) {
        stream.push(json, &Memory::uncounted()).await.unwrap();
    }

    async fn read(reader: &mut Reader) -> String {
        let event = reader.next().await.unwrap();
        String::from_utf8(event.to_vec()).unwrap()
    }

    fn token() -> CancellationToken {
        CancellationToken::new()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_reads_what_came_after_the_event_that_it_names() {
        let stream = stream(true);
        let mut reader = stream.read(None, token());
        assert_eq!(read(&mut reader).await, "id: 3-0\nretry: 1000\ndata:\n\n");
        push(&stream, "{\"n\":1}").await;
        assert!(read(&mut reader).await.starts_with("id: 3-1\n"));
        drop(reader);
        push(&stream, "{\"n\":2}").await;
        stream.finish();
        let mut again = stream.read(Some(0), token());
        assert!(read(&mut again).await.contains("{\"n\":1}"));
        assert!(read(&mut again).await.contains("{\"n\":2}"));
        assert!(again.next().await.is_none());
        // Without an id it goes on where the last reader stopped.
        let mut further = stream.read(None, token());
        assert!(further.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_reader_ends_the_first_and_a_writer_waits_for_a_slow_one() {
        let stream = stream(false);
        let mut first = stream.read(None, token());
        let mut second = stream.read(None, token());
        assert!(first.next().await.is_none());
        drop(first);
        assert!(stream.has_reader());
        for _ in 0..MAX_EVENTS {
            timeout(SOON, push(&stream, "{}")).await.unwrap();
        }
        assert!(timeout(SOON, push(&stream, "{}")).await.is_err());
        read(&mut second).await;
        timeout(SOON, push(&stream, "{}")).await.unwrap();
        drop(second);
        for _ in 0..10 * MAX_EVENTS {
            timeout(SOON, push(&stream, "{}")).await.unwrap();
        }
        assert_eq!(stream.state.lock().events.len(), MAX_EVENTS);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded_for_the_stream_and_for_the_lease() {
        let kept = KeptBytes::default();
        let long = format!("\"{}\"", "x".repeat(MAX_BYTES / 4));
        let streams: Vec<_> = (0..100)
            .map(|number| EventStream::new(number, true, false, Arc::clone(&kept)))
            .collect();
        for stream in &streams {
            for _ in 0..10 {
                push(stream, &long).await;
            }
            assert!(stream.state.lock().bytes <= MAX_BYTES);
        }
        assert!(kept.load(Ordering::Relaxed) <= MAX_LEASE_BYTES);
        // A message that is longer than all that is kept still arrives where a client reads.
        let mut reader = streams[99].read(None, token());
        let huge = format!("\"{}\"", "x".repeat(2 * MAX_BYTES));
        push(&streams[99], &huge).await;
        let mut read_all = 0;
        while read_all < huge.len() {
            read_all = reader.next().await.unwrap().len();
        }
        drop((reader, streams));
        assert_eq!(kept.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_sends_comments_and_one_that_nobody_reads_is_given_up() {
        let stream = stream(false);
        let began = Instant::now();
        let mut reader = stream.read(None, token());
        for count in 1..4 {
            assert_eq!(read(&mut reader).await, ":\n\n");
            assert_eq!(began.elapsed(), KEEP_ALIVE * count);
        }
        assert!(
            timeout(2 * RESUME_WITHIN, stream.abandoned())
                .await
                .is_err()
        );
        drop(reader);
        advance(RESUME_WITHIN / 2).await;
        assert!(timeout(SOON, stream.abandoned()).await.is_err());
        timeout(RESUME_WITHIN, stream.abandoned()).await.unwrap();
        assert!(!stream.is_over());
        stream.finish();
        assert!(stream.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_ends_when_the_process_stops() {
        let (stream, stopping) = (stream(false), token());
        let mut reader = stream.read(None, stopping.clone());
        stopping.cancel();
        assert!(reader.next().await.is_none());
    }
}
