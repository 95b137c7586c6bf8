//! The newest flows that ended, for `tail` and the admin API.

use std::collections::VecDeque;
use std::sync::Arc;

use addons::observe::{AuditLine, AuditSink};
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// How many flows are kept, and how far a live reader may fall behind before it misses some.
const KEPT: usize = 1000;

/// A bounded memory of finished flows. They become JSON when somebody reads them.
pub struct FlowLog {
    newest: Mutex<VecDeque<Arc<AuditLine>>>,
    live: broadcast::Sender<Arc<AuditLine>>,
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
    /// The flows that are kept, the newest first.
    pub fn newest(&self) -> Vec<Arc<AuditLine>> {
        self.newest.lock().iter().rev().cloned().collect()
    }

    /// The flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<AuditLine>> {
        self.live.subscribe()
    }
}

impl AuditSink for FlowLog {
    /// Waits for nobody: the oldest makes room, and a reader that is too slow is told how many
    /// it missed.
    fn write(&self, line: Arc<AuditLine>) {
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
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use addons::contract::{Addon as _, Client, Flow, Host, Kind, Outcome, Scheme};
    use addons::observe::{Audit, AuditSettings};
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    /// Ends as many flows, told apart by their ports.
    fn end_flows(log: &Arc<FlowLog>, count: usize) {
        let settings = AuditSettings {
            log: Arc::clone(log) as _,
            live: Vec::new(),
            lines_per_minute_per_container: NonZeroU32::new(1_000_000).unwrap(),
        };
        let audit = Audit::new(settings, &prometheus::Registry::new()).unwrap();
        let outcome = Outcome {
            status: 200,
            denial: None,
            aborted: false,
            duration: Duration::ZERO,
        };
        for port in 0..u16::try_from(count).unwrap() {
            let host = Host::parse("api.example.com").unwrap();
            let client = Client::default();
            let flow = Flow::new(Kind::Http, client, Scheme::Http, host, port, None);
            audit.finished(&flow, &outcome);
        }
    }

    #[test]
    fn the_newest_thousand_are_kept() {
        let log = Arc::new(FlowLog::default());
        end_flows(&log, KEPT + 7);
        let newest = log.newest();
        assert_eq!(newest.len(), KEPT);
        assert_eq!(newest.first().map(|line| line.port), Some(1006));
        assert_eq!(newest.last().map(|line| line.port), Some(7));
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed_and_holds_nobody_up() {
        let log = Arc::new(FlowLog::default());
        let mut reader = log.subscribe();
        end_flows(&log, 2 * KEPT + 100);
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
