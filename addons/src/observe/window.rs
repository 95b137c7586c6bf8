//! A sliding window over the last minute.

use std::collections::VecDeque;
use std::time::Instant;

/// A sum includes the current second and this many seconds before it, since a span of 60 seconds
/// can overlap 61 seconds of the window.
const REACH: u64 = 60;

/// Lines and bytes written, by second.
///
/// A token bucket would allow a full burst on top of a minute's refill. A window bounds the sum of
/// any 60 seconds.
pub(super) struct Window {
    began: Instant,
    /// The seconds with lines, counted from `began`, the oldest first.
    seconds: VecDeque<(u64, Amount)>,
    sum: Amount,
}

/// A number of lines, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) lines: u32,
    pub(super) bytes: u32,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn subtract(&mut self, other: Self) {
        self.lines = self.lines.saturating_sub(other.lines);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

impl Window {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            seconds: VecDeque::new(),
            sum: Amount::default(),
        }
    }

    /// The sum of the last 60 to 61 seconds.
    pub(super) fn sum(&mut self, now: Instant) -> Amount {
        let now = self.second(now);
        while let Some((second, amount)) = self.seconds.front()
            && second + REACH < now
        {
            self.sum.subtract(*amount);
            self.seconds.pop_front();
        }
        self.sum
    }

    /// Counts lines written at `now`.
    pub(super) fn add(&mut self, amount: Amount, now: Instant) {
        self.sum(now);
        self.sum.add(amount);
        let now = self.second(now);
        match self.seconds.back_mut() {
            // Flows end on several threads, so `now` may be earlier than in a previous call. The
            // lines then count in the newest second.
            Some((second, newest)) if *second >= now => newest.add(amount),
            _ => self.seconds.push_back((now, amount)),
        }
    }

    fn second(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::each_row;

    use super::*;

    fn amount(lines: u32, bytes: u32) -> Amount {
        Amount { lines, bytes }
    }

    #[test]
    fn lines_count_for_60_to_61_seconds() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut window = Window::new(start);
        window.add(amount(1, 10), at(500));
        window.add(amount(2, 20), at(900));
        window.add(amount(4, 40), at(30_000));
        each_row(
            [
                (30_000, amount(7, 70)),
                (60_999, amount(7, 70)),
                (61_000, amount(4, 40)),
                (90_999, amount(4, 40)),
                (91_000, amount(0, 0)),
                (1_000_000_000, amount(0, 0)),
            ],
            |(millis, expected)| {
                assert_eq!(window.sum(at(millis)), expected, "at {millis} ms");
            },
        );
        assert!(window.seconds.is_empty());
    }

    #[test]
    fn lines_of_an_earlier_time_count_in_the_newest_second_and_memory_is_bounded() {
        let start = Instant::now();
        let mut window = Window::new(start);
        for second in 0..1000 {
            for back in [0, 3, 1] {
                let at = start + Duration::from_secs(second);
                window.add(amount(1, 1), at - Duration::from_secs(back));
            }
        }
        assert_eq!(window.seconds.len(), 61);
        let last = start + Duration::from_secs(999);
        assert_eq!(window.sum(last), amount(183, 183));
    }
}
