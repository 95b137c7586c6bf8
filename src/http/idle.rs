//! When something last happened on a client connection, and how long that may last.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::ProxyConfig;

/// How long an idle client connection keeps its upstream connection to itself.
const KEEP_UPSTREAM: Duration = Duration::from_secs(2);

/// How long a connection may be quiet.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the first byte of a head to its last.
    pub header: Duration,
    /// With nothing moving, in a body or between requests.
    pub idle: Duration,
}

impl From<&ProxyConfig> for Timeouts {
    fn from(config: &ProxyConfig) -> Self {
        Self {
            header: config.limits.header_read_timeout,
            idle: config.upstream.idle_timeout,
        }
    }
}

/// How often a connection with a request that waits in the chain is looked at: its client may have
/// gone, which nothing else reads from the socket meanwhile.
const LOOK_FOR_CLIENT: Duration = Duration::from_secs(1);

/// What a connection's watchdog is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// Look again at this time.
    At(Instant),
    /// Hand idle upstream connections back, then look again.
    HandBack,
    /// The connection was quiet for too long.
    Over,
}

/// Marks of time on one client connection, in milliseconds since it began. Relaxed atomics:
/// the reader polls, and a mark that is seen late only makes it look again.
pub struct IdleTracker {
    began: Instant,
    last: AtomicU64,
    /// When the first byte of an unfinished head arrived; 0 for none.
    head_since: AtomicU64,
    in_flight: AtomicUsize,
    /// Requests that wait for an upstream, which has a limit of its own, or in the chain.
    waiting: AtomicUsize,
    /// Those of them that wait in the chain, for a token or a person.
    held: AtomicUsize,
    /// A request has begun since the handshake.
    asked: AtomicBool,
    /// HTTP/2 has frames between requests: heads cannot be told from pings by their bytes.
    frames: AtomicBool,
    /// Since when the client has taken nothing of what is written to it; 0 while it does.
    unread_since: AtomicU64,
    keeps_upstream: AtomicBool,
    /// A head that begins earlier than this needs an earlier look than the one that is planned.
    looks_late_before: AtomicU64,
    wake: Notify,
}

impl IdleTracker {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            frames: AtomicBool::new(false),
            unread_since: AtomicU64::new(0),
            keeps_upstream: AtomicBool::new(false),
            looks_late_before: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
        }
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, time: Instant) -> u64 {
        time.duration_since(self.began).as_millis() as u64
    }

    /// Bytes arrived from the client.
    pub fn read(&self) {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            self.moved();
        } else if !self.frames.load(Ordering::Relaxed)
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            let now = self.now().max(1);
            self.head_since.store(now, Ordering::Relaxed);
            // Most heads are over long before the next look: no timer moves for them.
            if now < self.looks_late_before.load(Ordering::Relaxed) {
                self.wake.notify_one();
            }
        }
    }

    /// Bytes were offered to the client, which took them or has to be waited for.
    pub fn wrote(&self, waits: bool) {
        if !waits {
            self.unread_since.store(0, Ordering::Relaxed);
        } else if self.unread_since.load(Ordering::Relaxed) == 0 {
            self.unread_since
                .store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// Whether no request is under way and nothing waits to be read by the client.
    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
            && self.unread_since.load(Ordering::Relaxed) == 0
    }

    /// A body moved, in either direction.
    pub fn moved(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// A head is complete, as of now.
    pub fn begin(&self, now: Instant) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.last.store(self.at(now), Ordering::Relaxed);
    }

    /// A response is complete, or given up, as of now.
    pub fn end(&self, now: Instant) {
        self.last.store(self.at(now), Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Until the guard goes, the client waits for an upstream and is not to blame for silence.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Awaits a phase of the chain. From the moment when it has to wait, the client is not idle, and
    /// the connection's task looks every second whether the client is still there.
    pub async fn held<T>(&self, phase: impl Future<Output = T>) -> T {
        let mut phase = pin!(phase);
        let mut holding = None;
        poll_fn(|context| {
            let done = phase.as_mut().poll(context);
            if done.is_pending() && holding.is_none() {
                holding = Some(Holding::begin(self));
            }
            done
        })
        .await
    }

    /// The same for an answer that is written as things happen, until the guard is dropped.
    pub fn hold(self: &Arc<Self>) -> Held {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.held.fetch_add(1, Ordering::Relaxed);
        self.wake.notify_one();
        Held(Arc::clone(self))
    }

    /// Whether a request waits in the chain.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// What was read so far was a handshake and no head.
    pub fn handshake_done(&self, frames: bool) {
        self.frames.store(frames, Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.moved();
    }

    /// Time since the first byte of the unfinished head arrived. A head that arrived together with
    /// the end of a handshake or of a body has no mark of its own; their mark stands for it.
    pub fn since_head(&self) -> Duration {
        let began = match self.head_since.load(Ordering::Relaxed) {
            0 => self.last.load(Ordering::Relaxed),
            since => since,
        };
        let elapsed = self.began.elapsed();
        elapsed.saturating_sub(Duration::from_millis(began))
    }

    /// Whether there was a handshake within this time, and no request after it.
    pub fn only_shook_hands(&self, within: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        !self.asked.load(Ordering::Relaxed) && self.began.elapsed() < last + within
    }

    /// An upstream connection now waits for this client's next request.
    pub fn keeps_upstream(&self) {
        if !self.keeps_upstream.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// What is due now.
    pub fn due(&self, timeouts: Timeouts) -> Due {
        let now = self.now();
        let last = self.last.load(Ordering::Relaxed);
        let head_since = self.head_since.load(Ordering::Relaxed);
        let unread_since = self.unread_since.load(Ordering::Relaxed);
        let over = match head_since {
            // A client that does not read is to blame, whatever else is waited for.
            0 if unread_since > 0 => last.max(unread_since) + timeouts.idle.as_millis() as u64,
            0 if self.waiting.load(Ordering::Relaxed) > 0 => now + timeouts.idle.as_millis() as u64,
            0 => last + timeouts.idle.as_millis() as u64,
            since => since + timeouts.header.as_millis() as u64,
        };
        if over <= now {
            return Due::Over;
        }
        let mut next = over;
        if self.is_held() {
            next = next.min(now + LOOK_FOR_CLIENT.as_millis() as u64);
        }
        let quiet = self.in_flight.load(Ordering::Relaxed) == 0;
        if self.keeps_upstream.load(Ordering::Relaxed) {
            let hand_back = last + KEEP_UPSTREAM.as_millis() as u64;
            if quiet && hand_back <= now {
                self.keeps_upstream.store(false, Ordering::Relaxed);
                return Due::HandBack;
            }
            let look = hand_back.max(now + KEEP_UPSTREAM.as_millis() as u64 / 4);
            next = next.min(look);
        }
        Due::At(self.began + Duration::from_millis(next))
    }

    /// Ends when the connection was quiet for too long; calls `hand_back` whenever upstream
    /// connections were idle long enough to be shared.
    pub async fn watch(&self, timeouts: Timeouts, hand_back: impl Fn()) {
        loop {
            // What begins while this looks is not missed.
            self.looks_late_before.store(u64::MAX, Ordering::Relaxed);
            match self.due(timeouts) {
                Due::Over => return,
                Due::HandBack => hand_back(),
                Due::At(at) => {
                    let late = at
                        .duration_since(self.began)
                        .saturating_sub(timeouts.header);
                    let late = late.as_millis() as u64;
                    self.looks_late_before.store(late, Ordering::Relaxed);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = self.wake.notified() => {}
                    }
                }
            }
        }
    }
}

/// See [`IdleTracker::wait`].
pub struct Waiting<'a>(&'a IdleTracker);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.moved();
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that waits in the chain.
struct Holding<'a>(Waiting<'a>);

impl<'a> Holding<'a> {
    fn begin(idle: &'a IdleTracker) -> Self {
        idle.held.fetch_add(1, Ordering::Relaxed);
        // The next look is planned for the end of the idle timeout.
        idle.wake.notify_one();
        Self(idle.wait())
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let Waiting(idle) = self.0;
        idle.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See [`IdleTracker::hold`].
pub struct Held(Arc<IdleTracker>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.moved();
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::each_row_async;
    use tokio::time::advance;

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(15),
        idle: Duration::from_secs(300),
    };

    fn over_in(idle: &IdleTracker) -> u64 {
        match idle.due(TIMEOUTS) {
            Due::At(at) => (at - Instant::now()).as_secs(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_deadline_from_its_first_byte_and_later_bytes_do_not_move_it() {
        let idle = IdleTracker::new();
        advance(Duration::from_secs(100)).await;
        assert_eq!(over_in(&idle), 200);
        idle.read();
        advance(Duration::from_secs(14)).await;
        idle.read();
        assert_eq!(over_in(&idle), 1);
        advance(Duration::from_secs(1)).await;
        assert_eq!(idle.due(TIMEOUTS), Due::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn heads_that_begin_at_any_time_end_the_watch_at_their_deadline() {
        each_row_async([0, 1, 20, 290], async |quiet| {
            let idle = IdleTracker::new();
            let began = Instant::now();
            let client = async {
                tokio::time::sleep(Duration::from_secs(quiet)).await;
                idle.read();
                idle.begin(Instant::now());
                idle.end(Instant::now());
                tokio::time::sleep(Duration::from_secs(5)).await;
                idle.read();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = client => {}
                () = idle.watch(TIMEOUTS, || {}) => {}
            }
            let took = began.elapsed().as_secs();
            assert_eq!(took, quiet + 5 + 15, "after {quiet} s");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_moves_keeps_the_connection() {
        let idle = IdleTracker::new();
        idle.read();
        idle.begin(Instant::now());
        advance(Duration::from_secs(299)).await;
        idle.moved();
        assert_eq!(over_in(&idle), 300);
        advance(Duration::from_secs(300)).await;
        assert_eq!(idle.due(TIMEOUTS), Due::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_an_upstream_is_not_idling() {
        let idle = IdleTracker::new();
        idle.begin(Instant::now());
        let waiting = idle.wait();
        advance(Duration::from_secs(1000)).await;
        assert_eq!(over_in(&idle), 300);
        drop(waiting);
        advance(Duration::from_secs(299)).await;
        assert_eq!(over_in(&idle), 1);
        advance(Duration::from_secs(1)).await;
        assert_eq!(idle.due(TIMEOUTS), Due::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn a_phase_that_waits_keeps_the_connection_and_has_it_looked_at_every_second() {
        let idle = IdleTracker::new();
        idle.begin(Instant::now());
        assert_eq!(idle.held(async { 1 }).await, 1);
        assert!(!idle.is_held());
        let phase = tokio::time::sleep(Duration::from_secs(1000));
        let mut watched = 0;
        let watching = async {
            loop {
                advance(Duration::from_secs(1)).await;
                assert!(idle.is_held());
                assert!(over_in(&idle) <= 1);
                watched += 1;
            }
        };
        tokio::select! {
            () = idle.held(phase) => {}
            () = watching => {}
        }
        assert!(watched > 990);
        assert!(!idle.is_held());
        assert_eq!(over_in(&idle), 300);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_written_as_things_happen_keeps_the_connection_until_it_ends() {
        let idle = Arc::new(IdleTracker::new());
        idle.begin(Instant::now());
        let held = idle.hold();
        advance(Duration::from_secs(1000)).await;
        assert!(idle.is_held());
        assert!(over_in(&idle) <= 1);
        drop(held);
        assert!(!idle.is_held());
        assert_eq!(over_in(&idle), 300);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_of_an_answer_loses_its_connection_in_the_idle_time() {
        let idle = Arc::new(IdleTracker::new());
        idle.begin(Instant::now());
        let _held = idle.hold();
        advance(Duration::from_secs(1000)).await;
        idle.wrote(true);
        advance(Duration::from_secs(299)).await;
        idle.wrote(true);
        assert!(matches!(idle.due(TIMEOUTS), Due::At(_)));
        idle.wrote(false);
        advance(Duration::from_secs(300)).await;
        assert!(matches!(idle.due(TIMEOUTS), Due::At(_)));
        idle.wrote(true);
        advance(Duration::from_secs(300)).await;
        assert_eq!(idle.due(TIMEOUTS), Due::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn upstream_connections_are_handed_back_after_two_idle_seconds_and_only_then() {
        let idle = IdleTracker::new();
        idle.begin(Instant::now());
        idle.keeps_upstream();
        advance(Duration::from_secs(10)).await;
        assert!(matches!(idle.due(TIMEOUTS), Due::At(_)));
        idle.end(Instant::now());
        advance(Duration::from_millis(1900)).await;
        assert!(matches!(idle.due(TIMEOUTS), Due::At(_)));
        advance(Duration::from_millis(200)).await;
        assert_eq!(idle.due(TIMEOUTS), Due::HandBack);
        assert!(matches!(idle.due(TIMEOUTS), Due::At(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_without_a_request_and_without_an_answer_that_waits() {
        let idle = IdleTracker::new();
        idle.read();
        assert!(idle.is_idle());
        idle.begin(Instant::now());
        assert!(!idle.is_idle());
        idle.wrote(true);
        idle.end(Instant::now());
        assert!(!idle.is_idle());
        idle.wrote(false);
        assert!(idle.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_without_a_request_is_told_for_a_while() {
        const SOON: Duration = Duration::from_secs(1);
        let idle = IdleTracker::new();
        idle.begin(Instant::now());
        idle.end(Instant::now());
        assert!(!idle.only_shook_hands(SOON));
        idle.handshake_done(false);
        advance(Duration::from_millis(999)).await;
        idle.read();
        assert!(idle.only_shook_hands(SOON));
        advance(Duration::from_millis(1)).await;
        assert!(!idle.only_shook_hands(SOON));
        idle.handshake_done(true);
        idle.begin(Instant::now());
        idle.end(Instant::now());
        assert!(!idle.only_shook_hands(SOON));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_head_began_with_its_first_byte_or_with_what_it_came_with() {
        let idle = IdleTracker::new();
        advance(Duration::from_secs(2)).await;
        idle.handshake_done(false);
        advance(Duration::from_secs(3)).await;
        assert_eq!(idle.since_head(), Duration::from_secs(3));
        idle.read();
        advance(Duration::from_secs(1)).await;
        idle.read();
        assert_eq!(idle.since_head(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn pings_do_not_keep_an_http2_connection_without_requests() {
        let idle = IdleTracker::new();
        idle.handshake_done(true);
        for _ in 0..30 {
            advance(Duration::from_secs(10)).await;
            idle.read();
        }
        assert_eq!(idle.due(TIMEOUTS), Due::Over);
    }
}
