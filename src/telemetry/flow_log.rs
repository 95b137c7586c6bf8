//! The newest flows that ended, for `tail` and the admin API.

use std::collections::VecDeque;
use std::sync::Arc;

use addons::observe::{AuditLine, AuditSink};
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// How many flows are kept, and how far a live reader may fall behind before it misses some.
const KEPT: usize = 1000;

/// A bounded memory of finished flows, each one line of JSON.
pub struct FlowLog {
    newest: Mutex<VecDeque<Arc<str>>>,
    live: broadcast::Sender<Arc<str>>,
}

impl Default for FlowLog {
    fn default() -> Self {
        Self {
            newest: Mutex::new(VecDeque::with_capacity(KEPT)),
            live: broadcast::Sender::new(KEPT),
        }
    }
}

impl FlowLog {
    /// Adds a flow: one JSON object without a line break. Waits for nobody: the oldest makes
    /// room, and a reader that is too slow is told how many it missed.
    pub fn push(&self, line: Arc<str>) {
        if self.live.receiver_count() > 0 {
            // An error only says that the last reader went away just now.
            let _ = self.live.send(Arc::clone(&line));
        }
        let oldest = {
            let mut newest = self.newest.lock();
            let oldest = (newest.len() == KEPT).then(|| newest.pop_front());
            newest.push_back(line);
            oldest
        };
        // Freed outside of the lock.
        drop(oldest);
    }

    /// The flows that are kept, the newest first.
    pub fn newest(&self) -> Vec<Arc<str>> {
        self.newest.lock().iter().rev().cloned().collect()
    }

    /// The flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.live.subscribe()
    }
}

impl AuditSink for FlowLog {
    fn write(&self, line: AuditLine) {
        if let Ok(json) = serde_json::to_string(&line) {
            self.push(json.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    #[test]
    fn the_newest_thousand_are_kept() {
        let log = FlowLog::default();
        for number in 0..KEPT + 7 {
            log.push(number.to_string().into());
        }
        let newest = log.newest();
        assert_eq!(newest.len(), KEPT);
        assert_eq!(newest.first().map(|line| &**line), Some("1006"));
        assert_eq!(newest.last().map(|line| &**line), Some("7"));
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed_and_holds_nobody_up() {
        let log = FlowLog::default();
        let mut reader = log.subscribe();
        for number in 0..2 * KEPT + 100 {
            log.push(number.to_string().into());
        }
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
