//! The lines of ended flows, on their way to the audit log and to live readers.
//!
//! A line arrives when its flow ends. If the container's budget for audit lines is used up, the
//! line goes only to live readers, and the log later gets one folded line for several flows. The
//! writer of the audit log takes the lines that wait for the disk; the admin API reads the newest
//! flows.

use std::sync::Arc;
use std::time::Duration;

use addons::observe::{AuditSink, Destination};
use parking_lot::{Condvar, Mutex};
use prometheus::{IntCounter, Registry};
use tokio::sync::broadcast;

use super::lost::Lost;
use super::newest_flows::{Line, NewestFlows};

/// The most bytes of lines that wait for the disk. Lines beyond the limit are dropped from the log
/// and counted. A writer whose disk hangs may hold as many bytes again.
const MAX_WAITING_BYTES: usize = 16 * 1024 * 1024;
/// The most lines that wait for the disk; lines beyond this limit are dropped and counted, too. It
/// bounds the memory that the lines need besides their text.
const MAX_WAITING_LINES: usize = 64 * 1024;

/// The lines of ended flows: written by flows, read by the audit log and the admin API.
pub struct FlowLog {
    lines: Mutex<Lines>,
    /// Wakes the writer of the log, which waits with the lock of `lines`.
    written: Condvar,
    dropped: IntCounter,
    /// Lost lines that the log has no record of yet.
    lost: Mutex<Option<Lost>>,
}

/// Locked by every flow that ends, so lines are neither formatted nor written under the lock.
#[derive(Default)]
struct Lines {
    newest: NewestFlows,
    /// Lines that wait for the writer of the log.
    waiting: Vec<Line>,
    /// The number of bytes of the waiting lines.
    waiting_bytes: usize,
    /// The log takes no more lines.
    closed: bool,
}

impl Lines {
    /// Whether the log takes one more line.
    fn admits(&self, line: &Line) -> bool {
        !self.closed
            && self.waiting.len() < MAX_WAITING_LINES
            && self.waiting_bytes + line.len() <= MAX_WAITING_BYTES
    }
}

impl FlowLog {
    /// Makes an empty log, and registers `proxy_audit_lines_dropped_total`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Audit lines that were lost: the disk failed, or could not keep up.";
        let dropped = IntCounter::new("proxy_audit_lines_dropped_total", help)?;
        registry.register(Box::new(dropped.clone()))?;
        Ok(Self {
            lines: Mutex::default(),
            written: Condvar::new(),
            dropped,
            lost: Mutex::default(),
        })
    }

    /// The newest flows as a JSON array, newest first. Includes flows that ended just before the
    /// call.
    pub fn newest(&self) -> Vec<u8> {
        let newest = self.lines.lock().newest.list();
        [b"[", newest.join(&b","[..]).as_slice(), b"]"].concat()
    }

    /// Subscribes to the flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Line> {
        self.lines.lock().newest.subscribe()
    }

    /// Counts lines that the log has lost: in the metric, and for the next record of lost lines.
    pub(super) fn count_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.inc_by(lines);
            self.add_lost(Lost::now(lines));
        }
    }

    pub(super) fn lost(&self) -> Option<Lost> {
        *self.lost.lock()
    }

    /// Takes the lost lines; the caller records them or adds them back.
    pub(super) fn take_lost(&self) -> Option<Lost> {
        self.lost.lock().take()
    }

    /// Adds lost lines to the next record, but not to the metric. The metric has counted them
    /// already, or an earlier process lost them.
    pub(super) fn add_lost(&self, more: Lost) {
        let mut lost = self.lost.lock();
        *lost = Some(lost.map_or(more, |lost| lost.and(more)));
    }

    /// Adds a record of the log's writer to the newest flows, and sends it to subscribers.
    pub(super) fn show(&self, record: &[u8]) {
        self.lines.lock().newest.push(record.into());
    }

    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Blocks until there is a line to be written to disk, for at most `limit`. Returns `false`
    /// once the log has ended: no line follows the lines that wait now.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let mut lines = self.lines.lock();
        if lines.waiting.is_empty() && !lines.closed {
            self.written.wait_for(&mut lines, limit);
        }
        !lines.closed
    }

    /// Takes the lines that wait for the disk, oldest first.
    pub(super) fn take(&self) -> Vec<Line> {
        let mut lines = self.lines.lock();
        lines.waiting_bytes = 0;
        std::mem::take(&mut lines.waiting)
    }

    /// Ends the log: further lines for the log are lost and counted. The writer still takes the
    /// waiting lines.
    pub(super) fn end(&self) {
        self.lines.lock().closed = true;
        self.written.notify_one();
    }
}

impl AuditSink for FlowLog {
    fn write(&self, line: &[u8], to: Destination) {
        let line: Line = line.into();
        let mut lines = self.lines.lock();
        let is_first = lines.waiting.is_empty();
        if to != Destination::Log {
            lines.newest.push(Arc::clone(&line));
        }
        if to == Destination::Live {
            return;
        }
        let is_logged = lines.admits(&line);
        if is_logged {
            lines.waiting_bytes += line.len();
            lines.waiting.push(line);
        }
        drop(lines);
        if !is_logged {
            self.count_dropped(1);
        } else if is_first {
            // Later lines find the writer awake, or woken already, until it takes the lines.
            self.written.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::telemetry::ended::end_flows;

    fn flow_log() -> FlowLog {
        FlowLog::new(&Registry::new()).unwrap()
    }

    fn taken(flow_log: &FlowLog) -> Vec<usize> {
        let lines = flow_log.take();
        let lines = lines.iter().map(|line| str::from_utf8(line).unwrap());
        lines.map(|line| line.parse().unwrap()).collect()
    }

    fn newest(flow_log: &FlowLog) -> Vec<usize> {
        serde_json::from_slice(&flow_log.newest()).unwrap()
    }

    fn write(flow_log: &FlowLog, numbers: impl IntoIterator<Item = usize>, to: Destination) {
        for number in numbers {
            flow_log.write(number.to_string().as_bytes(), to);
        }
    }

    #[test]
    fn the_log_and_live_readers_get_the_lines_of_all_threads_in_one_order() {
        let flow_log = flow_log();
        thread::scope(|scope| {
            for first in 0..3 {
                let flow_log = &flow_log;
                let numbers = (first..999).step_by(3);
                scope.spawn(move || write(flow_log, numbers, Destination::Both));
            }
        });
        let logged = taken(&flow_log);
        assert!(newest(&flow_log).iter().rev().eq(&logged));
        for first in 0..3 {
            let of_thread = logged.iter().filter(|number| *number % 3 == first);
            assert!(of_thread.copied().eq((first..999).step_by(3)), "{first}");
        }
    }

    #[test]
    fn a_line_goes_to_its_destination() {
        let flow_log = flow_log();
        write(&flow_log, [1], Destination::Both);
        write(&flow_log, [2], Destination::Live);
        write(&flow_log, [3], Destination::Log);
        write(&flow_log, [4], Destination::Both);
        assert_eq!(newest(&flow_log), [4, 2, 1]);
        write(&flow_log, [5], Destination::Both);
        assert_eq!(taken(&flow_log), [1, 3, 4, 5]);
        assert_eq!(newest(&flow_log), [5, 4, 2, 1]);
        assert!(taken(&flow_log).is_empty());
    }

    #[test]
    fn a_subscriber_sees_the_flows_that_end_afterwards() {
        let flow_log = Arc::new(flow_log());
        end_flows(Arc::clone(&flow_log) as _, 3);
        let mut reader = flow_log.subscribe();
        end_flows(Arc::clone(&flow_log) as _, 1);
        let line = reader.try_recv().unwrap();
        assert!(
            flow_log
                .newest()
                .starts_with(&[b"[", &line[..], b","].concat())
        );
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn lines_over_the_bound_are_counted_and_dropped_from_the_log_only() {
        let flow_log = flow_log();
        write(&flow_log, 0..MAX_WAITING_LINES + 5, Destination::Both);
        assert_eq!(flow_log.dropped(), 5);
        assert_eq!(
            newest(&flow_log)[..7].last(),
            Some(&(MAX_WAITING_LINES - 2))
        );
        assert_eq!(taken(&flow_log), (0..MAX_WAITING_LINES).collect::<Vec<_>>());
        write(&flow_log, [1], Destination::Both);
        assert_eq!((taken(&flow_log), flow_log.dropped()), (vec![1], 5));
    }

    #[test]
    fn the_bytes_of_lines_that_wait_for_the_disk_are_bounded() {
        let flow_log = flow_log();
        let line = [b'1'; 1000];
        let most = MAX_WAITING_BYTES / line.len();
        for drops in [5, 10] {
            (0..most + 5).for_each(|_| flow_log.write(&line, Destination::Log));
            assert_eq!(flow_log.dropped(), drops);
            assert_eq!(flow_log.take().len(), most);
        }
    }

    #[test]
    fn a_flood_of_unlogged_lines_takes_no_room_from_the_log() {
        let flow_log = flow_log();
        write(&flow_log, 0..2 * MAX_WAITING_LINES, Destination::Live);
        write(&flow_log, 0..MAX_WAITING_LINES, Destination::Log);
        assert_eq!(taken(&flow_log).len(), MAX_WAITING_LINES);
        assert_eq!(flow_log.dropped(), 0);
        assert_eq!(newest(&flow_log)[0], 2 * MAX_WAITING_LINES - 1);
    }

    #[test]
    fn a_line_wakes_the_writer_and_after_the_end_the_writer_does_not_wait() {
        let flow_log = flow_log();
        let patience = Duration::from_secs(60);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                let more = [flow_log.wait(patience), flow_log.wait(patience)];
                (more, begun.elapsed() < patience)
            });
            write(&flow_log, [1], Destination::Log);
            assert_eq!(taken(&flow_log), [1]);
            write(&flow_log, [2], Destination::Log);
            assert_eq!(waiting.join().unwrap(), ([true, true], true));
        });
        flow_log.end();
        assert!(!flow_log.wait(patience));
        write(&flow_log, [3], Destination::Both);
        assert_eq!((taken(&flow_log), flow_log.dropped()), (vec![2], 1));
        assert_eq!(newest(&flow_log), [3]);
    }
}
