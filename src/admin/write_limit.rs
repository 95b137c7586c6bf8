//! The rate limit of requests that write to disk.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Limit on the writes within [`WINDOW`], since each costs an `fsync`.
const WRITES: usize = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Permits at most [`WRITES`] writes of all clients together in any period of [`WINDOW`].
#[derive(Default)]
pub(super) struct WriteLimit(Mutex<VecDeque<Instant>>);

impl WriteLimit {
    /// Counts a write. Over the limit, does not count it and returns the time until the next one is
    /// permitted.
    pub(super) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut taken = self.0.lock();
        match taken.front() {
            Some(oldest) if taken.len() == WRITES => {
                let passed = now.saturating_duration_since(*oldest);
                if passed < WINDOW {
                    return Err(WINDOW - passed);
                }
                taken.pop_front();
            }
            _ => {}
        }
        taken.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_ten_writes_pass_in_any_second() {
        let limit = WriteLimit::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        for millis in [0, 0, 0, 0, 0, 500, 500, 500, 500, 500] {
            assert!(limit.take(at(millis)).is_ok());
        }
        assert_eq!(limit.take(at(900)), Err(Duration::from_millis(100)));
        for _ in 0..5 {
            assert!(limit.take(at(1000)).is_ok());
        }
        assert_eq!(limit.take(at(1001)), Err(Duration::from_millis(499)));
    }
}
