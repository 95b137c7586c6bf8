//! How often the registry may be written to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Writes within any one window; each is an `fsync`.
const WRITES: usize = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// At most [`WRITES`] in any [`WINDOW`], wherever it begins.
#[derive(Default)]
pub(super) struct WriteLimit(Mutex<VecDeque<Instant>>);

impl WriteLimit {
    /// Takes one write, or says how long to wait for it.
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
    fn any_second_has_ten_writes_and_no_more() {
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
