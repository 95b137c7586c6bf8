//! Limits the log lines about a failure that may recur at any rate.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest interval between two log lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts failures, of which at most one in a minute is logged.
#[derive(Default)]
pub(crate) struct LogThrottle {
    /// Failures since the previous log line.
    unlogged: u64,
    last_line: Option<Instant>,
}

impl LogThrottle {
    /// Counts a failure. Returns the number of failures since the previous log line, if another
    /// line is due.
    pub fn count(&mut self) -> Option<u64> {
        self.unlogged += 1;
        if self.last_line.is_some_and(|at| at.elapsed() < INTERVAL) {
            return None;
        }
        self.last_line = Some(Instant::now());
        Some(std::mem::take(&mut self.unlogged))
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
    }
}
