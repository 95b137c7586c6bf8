//! What a loop does when its socket fails.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The first rest, and the longest: out of descriptors, the kernel would answer at once again and
/// again.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// How often it is said.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Rests after failures, longer with each, and says so once a minute.
pub struct AcceptBackoff {
    what: &'static str,
    next: Duration,
    unsaid: u64,
    said: Option<Instant>,
}

impl AcceptBackoff {
    /// For a socket of this name.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            next: SHORTEST,
            unsaid: 0,
            said: None,
        }
    }

    /// The socket works.
    pub fn reset(&mut self) {
        self.next = SHORTEST;
    }

    /// It failed. What a peer did is forgotten at once.
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

    /// How often it failed since that was last said, once it is time to say so.
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
    async fn rests_grow_to_a_second_until_it_works_again_and_a_peers_doing_is_none() {
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
    async fn failures_are_said_once_a_minute_with_their_number() {
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
