//! The newest flows that ended, for `tail` and the admin API.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::newest_lines::{KEPT, NewestLines};

/// A bounded memory of finished flows, each as its line of JSON, and the way to those who watch.
#[derive(Default)]
pub struct NewestFlows {
    lines: NewestLines,
    /// The way to the readers, while there may be some; one that falls further behind than what
    /// is kept misses some.
    live: Option<broadcast::Sender<Arc<str>>>,
}

impl NewestFlows {
    /// Waits for nobody: a reader that is too slow is told how many it missed.
    pub fn push(&mut self, line: &[u8]) {
        if let Some(live) = &self.live
            && live.send(String::from_utf8_lossy(line).into()).is_err()
        {
            // The last reader went away.
            self.live = None;
        }
        self.lines.push(line, ());
    }

    /// The flows that are kept as a JSON array, the newest first.
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

    /// The flows that are pushed from now on.
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
    fn a_live_reader_is_given_the_line_that_is_kept() {
        let mut log = NewestFlows::default();
        let mut reader = log.subscribe();
        log.push(b"{\"port\":1}");
        let line = reader.try_recv().unwrap();
        assert_eq!(log.newest(), format!("[{line}]").into_bytes());
    }

    #[test]
    fn readers_come_and_go() {
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
    fn a_slow_reader_is_told_what_it_missed_and_holds_nobody_up() {
        let mut log = NewestFlows::default();
        let mut reader = log.subscribe();
        push(&mut log, 0..2 * KEPT + 100);
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
