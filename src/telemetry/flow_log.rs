//! The newest flows that ended, for `tail` and the admin API.

use std::sync::Arc;

use addons::observe::AuditSink;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::line_buffer::LineBuffer;

/// How many flows are kept, and how far a live reader may fall behind before it misses some.
const KEPT: usize = 1000;

/// A bounded memory of finished flows, each as its line of JSON. A line has at most 3 KiB but for
/// the operator's own names: two pages of so many have 6 MiB, room for at most twice as much, and
/// seldom more than one.
#[derive(Default)]
pub struct FlowLog(Mutex<Flows>);

#[derive(Default)]
struct Flows {
    /// Full, once there is one.
    older: LineBuffer,
    /// The page that is written; when it is full, it becomes the older.
    newer: LineBuffer,
    /// The way to the readers, while there may be some.
    live: Option<broadcast::Sender<Arc<str>>>,
}

impl FlowLog {
    /// The flows that are kept as a JSON array, the newest first.
    pub fn newest(&self) -> Vec<u8> {
        // Copied, so that flows wait for no more than that.
        let (older, newer) = {
            let flows = self.0.lock();
            (flows.older.clone(), flows.newer.clone())
        };
        let lines = newer.iter().rev().chain(older.iter().rev());
        let mut array = vec![b'['];
        for (at, line) in lines.take(KEPT).enumerate() {
            if at > 0 {
                array.push(b',');
            }
            array.extend_from_slice(line);
        }
        array.push(b']');
        array
    }

    /// The flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
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
    fn write(&self, line: &[u8]) {
        let flows = &mut *self.0.lock();
        if let Some(live) = &flows.live
            && live.send(String::from_utf8_lossy(line).into()).is_err()
        {
            // The last reader went away.
            flows.live = None;
        }
        if flows.newer.len() == KEPT {
            std::mem::swap(&mut flows.older, &mut flows.newer);
            flows.newer.clear();
        }
        flows.newer.push(line);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;
    use crate::telemetry::ended::end_flows;

    fn newest(log: &FlowLog) -> Vec<u64> {
        let flows: Vec<Value> = serde_json::from_slice(&log.newest()).unwrap();
        let ports = flows.iter().map(|flow| flow["port"].as_u64().unwrap());
        ports.collect()
    }

    #[test]
    fn the_newest_thousand_are_kept() {
        for count in [0, 1, 999, 1000, 1001, 1999, 2000, 2001, 3007] {
            let log = Arc::new(FlowLog::default());
            end_flows(log.clone(), count);
            let oldest = count.saturating_sub(KEPT);
            let expected = (oldest..count).rev().map(|port| port as u64);
            assert_eq!(newest(&log), expected.collect::<Vec<_>>(), "of {count}");
        }
    }

    #[test]
    fn the_room_for_lines_is_used_again() {
        let log = Arc::new(FlowLog::default());
        let line = b"0123456789".repeat(300);
        (0..50 * KEPT).for_each(|_| log.write(&line));
        let flows = log.0.lock();
        let room = flows.older.room() + flows.newer.room();
        assert!(flows.older.len() == KEPT && flows.newer.len() == KEPT);
        assert!(room <= 4 * KEPT * line.len(), "{room}");
    }

    #[test]
    fn a_live_reader_is_given_the_line_that_is_kept() {
        let log = Arc::new(FlowLog::default());
        let mut reader = log.subscribe();
        end_flows(log.clone(), 1);
        let line = reader.try_recv().unwrap();
        assert_eq!(log.newest(), format!("[{line}]").into_bytes());
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
        assert_eq!(newest(&log).len(), 6);
        assert!(log.0.lock().live.is_none());
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
