//! Backoff of an accept or receive loop whose socket fails.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use super::LogThrottle;

/// The delay after the first failure. Without a delay, `accept` would fail again at once while
/// there are no free file descriptors.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(1);

/// Waits after each failure that no peer caused: 10 ms at first, then twice as long each time, up
/// to 1 s, until a success. Logs these failures at most once a minute.
pub struct AcceptBackoff {
    what: &'static str,
    next: Duration,
    lines: LogThrottle,
}

impl AcceptBackoff {
    /// Makes a backoff for a socket; `what` names the socket in log lines.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            next: SHORTEST,
            lines: LogThrottle::default(),
        }
    }

    /// Calls `accept` until it succeeds. Waits after each failure that no peer caused.
    pub async fn retry<T, F>(&mut self, mut accept: impl FnMut() -> F) -> T
    where
        F: Future<Output = io::Result<T>>,
    {
        loop {
            match accept().await {
                Ok(accepted) => {
                    self.reset();
                    return accepted;
                }
                Err(error) => self.after(&error).await,
            }
        }
    }

    /// Resets the delay after a success.
    pub fn reset(&mut self) {
        self.next = SHORTEST;
    }

    /// Logs a failure if a log line is due, and waits. Ignores a failure that a peer caused.
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
        if let Some(times) = self.lines.count() {
            tracing::warn!(%error, times, "accept or receive failed, retrying: {}", self.what);
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

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
        backoff.retry(|| std::future::ready(Ok(()))).await;
        backoff.after(&exhausted).await;
        assert!(began.elapsed() - grown < Duration::from_millis(20));
    }
}
