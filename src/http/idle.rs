//! Activity of a client connection, and its timeouts.

use std::future::poll_fn;
use std::ops::{ControlFlow, Deref};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::ProxyConfig;

/// How long a client connection without requests keeps its upstream connections and, over HTTP/1.1,
/// its buffers.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// The timeouts of a client connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Limit from the first byte of a request head to its last.
    pub header: Duration,
    /// Limit for silence in a body or between requests.
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

/// How often the connection's task is woken to check whether the client has gone, while a request
/// waits in [`IdleTracker::held`] or the proxy streams its own response. hyper itself notices a
/// disconnect only if the request's body has been read and no other request follows.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest interval between two such checks. A check is a system call, and the task of a busy
/// connection is polled for every packet.
const CLIENT_CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Times of activity on one client connection, in milliseconds since `began`. Most accesses are
/// relaxed: the watchdog ([`IdleTracker::watch`]) reads the values at each check, and a late value
/// only makes it check again. The accesses to `held` and `next_check` are `SeqCst`: of
/// [`Held::begin`] and the watchdog's planning, at least one must see what the other stored.
pub struct IdleTracker {
    began: Instant,
    last: AtomicU64,
    /// When the first byte of an unfinished head arrived; 0 for none.
    head_since: AtomicU64,
    in_flight: AtomicUsize,
    /// Requests that wait for an upstream (which has its own timeout), plus the requests in `held`.
    waiting: AtomicUsize,
    /// Requests that wait in [`IdleTracker::held`], for example for a token or for a new upstream
    /// connection, and those whose response the proxy itself streams.
    held: AtomicUsize,
    /// A request has begun since [`IdleTracker::handshake_done`] was called.
    has_request: AtomicBool,
    /// The connection speaks HTTP/2. Bytes that arrive between requests may be PING frames, so they
    /// do not show that a head has begun.
    is_http2: AtomicBool,
    /// When writes to the client began to block; 0 while they do not.
    blocked_since: AtomicU64,
    /// A request or a handshake has ended, and the watchdog has not handled its end yet.
    release_pending: AtomicBool,
    /// The time of the next planned check minus the header timeout. The timeout of a head that
    /// begins earlier passes before that check, so the watchdog must be woken.
    overdue_before: AtomicU64,
    /// The time of the watchdog's next planned check; `u64::MAX` while the watchdog is planning.
    next_check: AtomicU64,
    /// The earliest time for the next check that the client is still connected.
    next_client_check: AtomicU64,
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
            has_request: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            blocked_since: AtomicU64::new(0),
            release_pending: AtomicBool::new(false),
            overdue_before: AtomicU64::new(u64::MAX),
            next_check: AtomicU64::new(u64::MAX),
            next_client_check: AtomicU64::new(0),
            wake: Notify::new(),
        }
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, time: Instant) -> u64 {
        time.duration_since(self.began).as_millis() as u64
    }

    /// Notes that bytes arrived from the client.
    pub fn read(&self) {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            self.moved();
        } else if !self.is_http2.load(Ordering::Relaxed)
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            let now = self.now().max(1);
            self.head_since.store(now, Ordering::Relaxed);
            // Wakes the watchdog only if the head's timeout passes before the next planned check:
            // most heads are complete by then.
            if now < self.overdue_before.load(Ordering::Relaxed) {
                self.wake.notify_one();
            }
        }
    }

    /// Returns when a timeout has passed.
    pub async fn timed_out(&self, timeouts: Timeouts) {
        while self.watch(timeouts).await == Watched::Idle {}
    }

    /// Notes a write to the client; `waits` says that it blocked.
    pub fn wrote(&self, waits: bool) {
        if !waits {
            self.blocked_since.store(0, Ordering::Relaxed);
        } else if self.blocked_since.load(Ordering::Relaxed) == 0 {
            self.blocked_since
                .store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// Whether output waits for the client to read it.
    pub fn is_blocked(&self) -> bool {
        self.blocked_since.load(Ordering::Relaxed) != 0
    }

    /// Whether no request is under way and no output waits for the client to read it.
    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
            && self.blocked_since.load(Ordering::Relaxed) == 0
    }

    /// Notes that bytes of a body or a relay moved, in either direction.
    pub fn moved(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Notes that a request head was complete, or that a relay began, at `now`.
    pub fn begin(&self, now: Instant) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.has_request.store(true, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.last.store(self.at(now), Ordering::Relaxed);
    }

    /// Notes that a response or a relay was complete or abandoned at `now`.
    pub fn end(&self, now: Instant) {
        self.last.store(self.at(now), Ordering::Relaxed);
        if self.in_flight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.release_later();
        }
    }

    /// Suspends the idle timeout until the guard is dropped, while the client waits for an
    /// upstream.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Awaits `phase`, for example a phase of the chain, the judges of a body, or the opening of an
    /// upstream connection. While `phase` is pending, the idle timeout is suspended, and the
    /// connection's task is woken every second to check that the client is still connected.
    pub async fn held<T>(&self, phase: impl Future<Output = T>) -> T {
        let mut phase = pin!(phase);
        let mut holding = None;
        poll_fn(|context| {
            let done = phase.as_mut().poll(context);
            if done.is_pending() && holding.is_none() {
                holding = Some(Held::begin(self));
            }
            done
        })
        .await
    }

    /// Suspends the idle timeout while the proxy streams a response that it writes itself, until
    /// the guard is dropped. The connection's task checks the client every second, as for
    /// [`IdleTracker::held`].
    pub fn hold(self: &Arc<Self>) -> Held<Arc<Self>> {
        Held::begin(Arc::clone(self))
    }

    /// Whether a request waits in [`IdleTracker::held`], or the proxy streams its own response.
    fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst) > 0
    }

    /// Whether the connection's task must check now that the client is still connected: a request
    /// is held, and the last check was at least [`CLIENT_CHECK_PAUSE`] ago. A call that returns
    /// `true` counts as a check.
    pub fn takes_client_check(&self) -> bool {
        if !self.is_held() {
            return false;
        }
        let now = self.now();
        let is_due = now >= self.next_client_check.load(Ordering::Relaxed);
        if is_due {
            let next = now + CLIENT_CHECK_PAUSE.as_millis() as u64;
            self.next_client_check.store(next, Ordering::Relaxed);
        }
        is_due
    }

    /// Notes that the tunnel's TLS handshake has ended, or that the tunnel contains HTTP in clear
    /// text. The header timeout starts only with the next byte read, since all bytes read so far
    /// may belong to the handshake. `is_http2` says that HTTP/2 follows.
    pub fn handshake_done(&self, is_http2: bool) {
        self.is_http2.store(is_http2, Ordering::Relaxed);
        self.has_request.store(false, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.moved();
        self.release_later();
    }

    /// Time since the first byte of the unfinished head arrived. The time of that byte is unknown
    /// if it arrived together with the end of a handshake or of a body. The result is then the time
    /// since the last activity.
    pub fn since_head(&self) -> Duration {
        let began = match self.head_since.load(Ordering::Relaxed) {
            0 => self.last.load(Ordering::Relaxed),
            since => since,
        };
        let elapsed = self.began.elapsed();
        elapsed.saturating_sub(Duration::from_millis(began))
    }

    /// Whether the last handshake ended less than `within` ago, and no request followed it.
    pub fn handshake_without_request(&self, within: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        !self.has_request.load(Ordering::Relaxed) && self.began.elapsed() < last + within
    }

    /// Makes the watchdog release the connection's upstream connections and buffers once the
    /// connection has been idle for 2 s.
    fn release_later(&self) {
        if !self.release_pending.load(Ordering::Relaxed)
            && !self.release_pending.swap(true, Ordering::Relaxed)
        {
            self.wake.notify_one();
        }
    }

    /// Whether no request is under way, no byte of the next one has arrived, and no output waits
    /// for the client to read it.
    pub fn is_between_requests(&self) -> bool {
        self.is_idle() && self.head_since.load(Ordering::Relaxed) == 0
    }

    /// The result of [`IdleTracker::watch`] if it is due now, otherwise the time of the next check.
    fn due(&self, timeouts: Timeouts) -> ControlFlow<Watched, Instant> {
        let now = self.now();
        let last = self.last.load(Ordering::Relaxed);
        let head_since = self.head_since.load(Ordering::Relaxed);
        let blocked_since = self.blocked_since.load(Ordering::Relaxed);
        let over = match head_since {
            // A client that does not read is timed out even while its request waits.
            0 if blocked_since > 0 => last.max(blocked_since) + timeouts.idle.as_millis() as u64,
            0 if self.waiting.load(Ordering::Relaxed) > 0 => now + timeouts.idle.as_millis() as u64,
            0 => last + timeouts.idle.as_millis() as u64,
            since => since + timeouts.header.as_millis() as u64,
        };
        if over <= now {
            return ControlFlow::Break(Watched::Over);
        }
        let mut next = over;
        let is_held = self.is_held();
        if is_held {
            next = next.min(now + CLIENT_CHECK_INTERVAL.as_millis() as u64);
        }
        let quiet = self.in_flight.load(Ordering::Relaxed) == 0;
        if self.release_pending.load(Ordering::Relaxed) {
            let release = last + IDLE_AFTER.as_millis() as u64;
            if !quiet {
                // Cleared, so that the end of the request sets the flag again and wakes the
                // watchdog. Not cleared while a request is held: the watchdog then checks every
                // second without being woken.
                self.release_pending.store(is_held, Ordering::Relaxed);
            } else if release <= now {
                self.release_pending.store(false, Ordering::Relaxed);
                return ControlFlow::Break(Watched::Idle);
            } else {
                next = next.min(release.max(now + IDLE_AFTER.as_millis() as u64 / 4));
            }
        }
        ControlFlow::Continue(self.began + Duration::from_millis(next))
    }

    /// Returns when a timeout has passed, or when the connection has been idle for 2 s. Reports
    /// idleness at most once after each request or handshake.
    pub async fn watch(&self, timeouts: Timeouts) -> Watched {
        loop {
            // Until the next check is planned, every head that begins wakes this task.
            self.overdue_before.store(u64::MAX, Ordering::Relaxed);
            self.next_check.store(u64::MAX, Ordering::SeqCst);
            match self.due(timeouts) {
                ControlFlow::Break(watched) => return watched,
                ControlFlow::Continue(at) => {
                    let late = at
                        .duration_since(self.began)
                        .saturating_sub(timeouts.header);
                    let late = late.as_millis() as u64;
                    self.overdue_before.store(late, Ordering::Relaxed);
                    self.next_check.store(self.at(at), Ordering::SeqCst);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = self.wake.notified() => {}
                    }
                }
            }
        }
    }
}

/// The result of [`IdleTracker::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The connection has been idle for 2 s.
    Idle,
    /// A timeout has passed.
    Over,
}

/// Guard of [`IdleTracker::wait`].
pub struct Waiting<'a>(&'a IdleTracker);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.moved();
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Guard of [`IdleTracker::hold`], and of [`IdleTracker::held`] for a phase that is pending.
pub struct Held<T: Deref<Target = IdleTracker>>(T);

impl<T: Deref<Target = IdleTracker>> Held<T> {
    fn begin(idle: T) -> Self {
        idle.waiting.fetch_add(1, Ordering::Relaxed);
        // If the watchdog plans its next check on another thread, either the watchdog sees the held
        // request, or this thread sees `u64::MAX` in `next_check`.
        idle.held.fetch_add(1, Ordering::SeqCst);
        let next_check = idle.next_check.load(Ordering::SeqCst);
        // The watchdog may sleep until the idle timeout; it must now check the client every second.
        if next_check > idle.now() + CLIENT_CHECK_INTERVAL.as_millis() as u64 {
            idle.wake.notify_one();
        }
        Self(idle)
    }
}

impl<T: Deref<Target = IdleTracker>> Drop for Held<T> {
    fn drop(&mut self) {
        self.0.moved();
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
