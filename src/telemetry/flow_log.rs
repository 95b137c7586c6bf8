//! The newest flows that ended, for `tail` and the admin API.

use std::collections::VecDeque;
use std::sync::Arc;

use addons::observe::{AuditLine, AuditSink};
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// How many flows are kept, and how far a live reader may fall behind before it misses some.
const KEPT: usize = 1000;

/// A bounded memory of finished flows. They become JSON when somebody reads them.
pub struct FlowLog(Mutex<Flows>);

struct Flows {
    newest: VecDeque<Arc<AuditLine>>,
    /// The way to the readers, while there may be some.
    live: Option<broadcast::Sender<Arc<AuditLine>>>,
}

impl Default for FlowLog {
    fn default() -> Self {
        Self(Mutex::new(Flows {
            newest: VecDeque::with_capacity(KEPT),
            live: None,
        }))
    }
}

impl FlowLog {
    /// The flows that are kept, the newest first.
    pub fn newest(&self) -> Vec<Arc<AuditLine>> {
        self.0.lock().newest.iter().rev().cloned().collect()
    }

    /// The flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<AuditLine>> {
        let mut flows = self.0.lock();
        let live = flows
            .live
            .get_or_insert_with(|| broadcast::Sender::new(KEPT));
        live.subscribe()
    }
}

impl AuditSink for FlowLog {
    /// Waits for nobody: the oldest makes room, and a reader that is too slow is told how many
    /// it missed.
    fn write(&self, line: Arc<AuditLine>) {
        let mut flows = self.0.lock();
        if let Some(live) = &flows.live
            && live.send(Arc::clone(&line)).is_err()
        {
            // The last reader went away.
            flows.live = None;
        }
        let oldest = match flows.newest.len() {
            KEPT => flows.newest.pop_front(),
            _ => None,
        };
        flows.newest.push_back(line);
        // Freed outside of the lock.
        drop(flows);
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;
    use crate::telemetry::ended::end_flows;

    #[test]
    fn the_newest_thousand_are_kept() {
        let log = Arc::new(FlowLog::default());
        end_flows(log.clone(), KEPT + 7);
        let newest = log.newest();
        assert_eq!(newest.len(), KEPT);
        assert_eq!(newest.first().map(|line| line.port), Some(1006));
        assert_eq!(newest.last().map(|line| line.port), Some(7));
    }

    #[test]
    fn readers_come_and_go() {
        let log = Arc::new(FlowLog::default());
        for _ in 0..2 {
            let (mut one, mut other) = (log.subscribe(), log.subscribe());
            end_flows(log.clone(), 1);
            drop(one.try_recv().unwrap());
            drop(one);
            end_flows(log.clone(), 1);
            assert!(other.try_recv().is_ok() && other.try_recv().is_ok());
            drop(other);
            end_flows(log.clone(), 1);
        }
        assert_eq!(log.newest().len(), 6);
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed_and_holds_nobody_up() {
        let log = Arc::new(FlowLog::default());
        let mut reader = log.subscribe();
        end_flows(log.clone(), 2 * KEPT + 100);
        assert!(matches!(reader.try_recv(), Err(TryRecvError::Lagged(missed)) if missed >= 1000));
        assert!(reader.try_recv().is_ok());
    }
}
