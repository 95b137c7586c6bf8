//! Limits the log lines about a failure that may recur at any rate.

use std::time::Duration;

use tokio::time::Instant;

/// The period for which the number of lines is limited.
const PERIOD: Duration = Duration::from_secs(60);

/// Counts failures, of which only the first of each minute are logged: one, unless a limit is given.
pub(crate) struct LogThrottle {
    /// The most lines in [`PERIOD`].
    most: u32,
    lines: u32,
    began: Option<Instant>,
    /// Failures since the previous log line.
    unlogged: u64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::of(1)
    }
}

impl LogThrottle {
    /// At most this number of lines in a minute.
    pub fn of(most: u32) -> Self {
        Self {
            most,
            lines: 0,
            began: None,
            unlogged: 0,
        }
    }

    /// Counts a failure. Returns the number of failures since the previous log line, if another
    /// line is due.
    pub fn count(&mut self) -> Option<u64> {
        self.unlogged += 1;
        if self.began.is_none_or(|began| began.elapsed() >= PERIOD) {
            (self.began, self.lines) = (Some(Instant::now()), 0);
        }
        if self.is_full() {
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Whether no further line is due in this minute.
    pub fn is_full(&self) -> bool {
        self.lines >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_logged_once_a_minute_with_their_number() {
        let mut lines = LogThrottle::default();
        let mut logged = Vec::new();
        for _ in 0..130 {
            logged.extend(lines.count());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, [1, 60, 60]);
        let mut lines = LogThrottle::of(3);
        let burst =
            |lines: &mut LogThrottle| -> Vec<_> { (0..10).filter_map(|_| lines.count()).collect() };
        assert_eq!(burst(&mut lines), [1, 1, 1]);
        assert!(lines.is_full());
        tokio::time::advance(PERIOD).await;
        assert_eq!(burst(&mut lines), [8, 1, 1]);
    }
}
