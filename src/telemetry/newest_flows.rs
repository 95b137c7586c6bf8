//! The flows that ended last, for `tail` and the admin API.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast;

/// A line: one JSON object without a line feed.
pub type Line = Arc<[u8]>;

/// The number of lines that are kept. A reader that is at most this far behind misses no line.
const KEPT: usize = 1000;

/// A bounded list of finished flows as lines of JSON, and the channel to live readers.
#[derive(Default)]
pub struct NewestFlows {
    /// Oldest first.
    lines: VecDeque<Line>,
    /// The channel to the readers; `None` if there are none. A reader that falls more than 1024
    /// lines behind ([`KEPT`] rounded up to a power of two) misses the oldest.
    live: Option<broadcast::Sender<Line>>,
}

impl NewestFlows {
    /// Adds a line. Never waits for a reader: a reader that is too slow gets the number of lines
    /// that it missed.
    pub fn push(&mut self, line: Line) {
        if let Some(live) = &self.live
            && live.send(Arc::clone(&line)).is_err()
        {
            // There is no reader left.
            self.live = None;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The newest flows, newest first.
    pub fn list(&self) -> Vec<Line> {
        self.lines.iter().rev().cloned().collect()
    }

    /// Subscribes to the flows that are pushed from now on.
    pub fn subscribe(&mut self) -> broadcast::Receiver<Line> {
        let live = self
            .live
            .get_or_insert_with(|| broadcast::Sender::new(KEPT));
        live.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    fn push(log: &mut NewestFlows, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| log.push(number.to_string().as_bytes().into()));
    }

    fn newest(log: &NewestFlows) -> Vec<usize> {
        let number = |line: &Line| str::from_utf8(line).unwrap().parse().unwrap();
        log.list().iter().map(number).collect()
    }

    #[test]
    fn the_newest_thousand_are_listed() {
        each_row([0, 1, 999, 1000, 1001, 1999, 2000, 2001, 3007], |count| {
            let mut log = NewestFlows::default();
            push(&mut log, 0..count);
            let expected = (count.saturating_sub(KEPT)..count).rev();
            assert_eq!(newest(&log), expected.collect::<Vec<_>>(), "of {count}");
        });
    }

    #[test]
    fn a_live_reader_gets_the_line_that_is_kept() {
        let mut log = NewestFlows::default();
        let mut reader = log.subscribe();
        push(&mut log, 7..8);
        assert_eq!(log.list(), [reader.try_recv().unwrap()]);
    }

    #[test]
    fn the_end_of_a_reader_affects_no_other_reader_and_the_last_reader_closes_the_channel() {
        let mut log = NewestFlows::default();
        for _ in 0..2 {
            let (mut one, mut other) = (log.subscribe(), log.subscribe());
            push(&mut log, 0..1);
            drop(one.try_recv().unwrap());
            drop(one);
            push(&mut log, 0..1);
            assert!(other.try_recv().is_ok() && other.try_recv().is_ok());
            drop(other);
            push(&mut log, 0..1);
        }
        assert_eq!(newest(&log).len(), 6);
        assert!(log.live.is_none());
    }

    #[test]
    fn a_slow_reader_gets_the_number_of_missed_lines_and_does_not_delay_push() {
        let mut log = NewestFlows::default();
        let mut reader = log.subscribe();
        push(&mut log, 0..2 * KEPT + 100);
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
