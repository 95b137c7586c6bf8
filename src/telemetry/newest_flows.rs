//! The flows that ended last, for `tail` and the admin API.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::newest_lines::{KEPT, NewestLines};

/// A bounded list of finished flows as lines of JSON, and the channel to live readers.
#[derive(Default)]
pub struct NewestFlows {
    lines: NewestLines,
    /// The channel to the readers; `None` if there are none. A reader that falls more than 1024
    /// lines behind ([`KEPT`] rounded up to a power of two) misses the oldest.
    live: Option<broadcast::Sender<Arc<str>>>,
}

impl NewestFlows {
    /// Adds a line. Never waits: a reader that is too slow gets the number of lines that it missed.
    pub fn push(&mut self, line: &[u8]) {
        if let Some(live) = &self.live
            && live.send(String::from_utf8_lossy(line).into()).is_err()
        {
            // There is no reader left.
            self.live = None;
        }
        self.lines.push(line, ());
    }

    /// The newest flows as a JSON array, newest first.
    pub fn newest(&self) -> Vec<u8> {
        let mut array = vec![b'['];
        for (at, (_, line)) in self.lines.iter().rev().take(KEPT).enumerate() {
            if at > 0 {
                array.push(b',');
            }
            array.extend_from_slice(line);
        }
        array.push(b']');
        array
    }

    /// Subscribes to the flows that are pushed from now on.
    pub fn subscribe(&mut self) -> broadcast::Receiver<Arc<str>> {
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
        numbers.for_each(|number| log.push(number.to_string().as_bytes()));
    }

    fn newest(log: &NewestFlows) -> Vec<usize> {
        serde_json::from_slice(&log.newest()).unwrap()
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
        log.push(b"{\"port\":1}");
        let line = reader.try_recv().unwrap();
        assert_eq!(log.newest(), format!("[{line}]").into_bytes());
    }

    #[test]
    fn readers_subscribe_and_unsubscribe() {
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
    fn a_slow_reader_gets_the_number_of_missed_lines_and_delays_nothing() {
        let mut log = NewestFlows::default();
        let mut reader = log.subscribe();
        push(&mut log, 0..2 * KEPT + 100);
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
