//! Backoff of an accept or receive loop whose socket fails.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The shortest and the longest delay. Without file descriptors, `accept` would fail again at once.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Interval between two log lines.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Waits after failures, longer after each, and logs them once a minute.
pub struct AcceptBackoff {
    what: &'static str,
    next: Duration,
    unsaid: u64,
    said: Option<Instant>,
}

impl AcceptBackoff {
    /// A backoff for the socket of this name.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            next: SHORTEST,
            unsaid: 0,
            said: None,
        }
    }

    /// Resets the delay after a success.
    pub fn reset(&mut self) {
        self.next = SHORTEST;
    }

    /// Waits after a failure. One that a peer caused is ignored.
    pub async fn after(&mut self, error: &io::Error) {
        use io::ErrorKind::{
            ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
        };
        let by_peer = [
            ConnectionAborted,
            ConnectionRefused,
            ConnectionReset,
            HostUnreachable,
        ];
        if by_peer.contains(&error.kind()) {
            return;
        }
        self.unsaid += 1;
        if let Some(times) = self.say() {
            tracing::warn!(%error, times, "a socket failed and is tried again: {}", self.what);
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST);
    }

    /// The number of failures since the last log line, if another line is due.
    fn say(&mut self) -> Option<u64> {
        if self.said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_to_a_second_until_a_success_and_failures_by_peers_are_ignored() {
        let began = Instant::now();
        let mut backoff = AcceptBackoff::new("a listener");
        backoff.after(&io::ErrorKind::ConnectionReset.into()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        let exhausted = io::Error::from_raw_os_error(24);
        for _ in 0..20 {
            backoff.after(&exhausted).await;
        }
        let grown = began.elapsed();
        assert!(
            (Duration::from_secs(13)..Duration::from_secs(15)).contains(&grown),
            "{grown:?}"
        );
        backoff.reset();
        backoff.after(&exhausted).await;
        assert!(began.elapsed() - grown < Duration::from_millis(20));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_logged_once_a_minute_with_their_number() {
        let mut backoff = AcceptBackoff::new("a listener");
        let mut said = Vec::new();
        for _ in 0..130 {
            backoff.unsaid += 1;
            said.extend(backoff.say());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(said, [1, 60, 60]);
    }
}
