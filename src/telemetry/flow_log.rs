//! The lines of ended flows, on their way to the audit log and to live readers.
//!
//! A flow writes its line once, to the buffer of its thread. Readers drain the buffers of all
//! threads: the writer of the audit log after it is notified of a line, and the admin API for a
//! request for the newest flows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::observe::{AuditSink, Destination};
use addons::shards::Shards;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prometheus::{IntCounter, Registry};
use tokio::sync::broadcast;

use super::line_buffer::LineBuffer;
use super::lost::Lost;
use super::newest_flows::NewestFlows;
use super::thread_buffer::{Bounds, ROOM, ThreadBuffer, Waiting};

/// The most text for the log in the buffers of all threads, in bytes; each buffer has an equal
/// share. Lines beyond it are dropped from the log and counted. As much again may be in each of
/// three further places: drained but not yet taken by the writer, held by a writer whose disk
/// hangs, and moving during a drain. A growing buffer allocates up to twice its text.
const WAITING: usize = 16 * 1024 * 1024;
/// The most lines for the log in one buffer, which bounds the memory of their spans.
const LINES: usize = 16 * 1024;

/// The lines of ended flows: written by flows, drained by readers.
pub struct FlowLog {
    buffers: Shards<Mutex<ThreadBuffer>>,
    notify: Notify,
    /// Locked by readers that drain, never by flows.
    drained: Mutex<Drained>,
    bounds: Bounds,
    dropped: IntCounter,
    /// Lost lines that the log has no record of yet.
    lost: Mutex<Option<Lost>>,
}

impl FlowLog {
    /// Makes an empty log, and registers `proxy_audit_lines_dropped_total`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Audit lines that were lost: the disk failed, or could not keep up.";
        let dropped = IntCounter::new("proxy_audit_lines_dropped_total", help)?;
        registry.register(Box::new(dropped.clone()))?;
        let buffers = Shards::<Mutex<ThreadBuffer>>::default();
        let bounds = Bounds {
            lines: LINES,
            bytes: WAITING / buffers.all().count(),
        };
        Ok(Self {
            buffers,
            notify: Notify::default(),
            drained: Mutex::default(),
            bounds,
            dropped,
            lost: Mutex::default(),
        })
    }

    /// The newest flows as a JSON array, newest first. Includes flows that ended just before the
    /// call.
    pub fn newest(&self) -> Vec<u8> {
        self.drain().flows.newest()
    }

    /// Subscribes to the flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.drain().flows.subscribe()
    }

    /// Counts lines that are lost to the log, in the metric and for its next record of lost lines.
    pub(super) fn count_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.inc_by(lines);
            self.add_lost(Lost::now(lines));
        }
    }

    /// Returns the lost lines that the log has no record of yet.
    pub(super) fn lost(&self) -> Option<Lost> {
        *self.lost.lock()
    }

    /// Takes the lost lines; the caller records them or adds them back.
    pub(super) fn take_lost(&self) -> Option<Lost> {
        self.lost.lock().take()
    }

    /// Adds lost lines that the metric has counted already.
    pub(super) fn add_lost(&self, more: Lost) {
        let mut lost = self.lost.lock();
        *lost = Some(lost.map_or(more, |lost| lost.and(more)));
    }

    /// Adds a record that the writer made, not a flow, to the newest flows, and sends it to
    /// subscribers.
    pub(super) fn show(&self, record: &[u8]) {
        self.drain().flows.push(record);
    }

    /// The number of lost lines.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Waits until a line was written since the last call, at most for `patience`. Returns `false`
    /// once the log has ended, so that no line follows those that wait now.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        self.notify.wait(patience)
    }

    /// Swaps the lines that wait for the disk into `done`; its old lines are dropped and its
    /// allocation is reused.
    pub(super) fn take(&self, done: &mut LineBuffer) {
        done.clear();
        done.shrink_to(ROOM);
        std::mem::swap(&mut self.drain().log, done);
    }

    /// Ends the log: further lines for it are lost and counted; the writer still takes those that
    /// wait.
    pub(super) fn end(&self) {
        self.buffers.all().for_each(|buffer| buffer.lock().close());
        self.notify.end();
    }

    /// Drains the buffers of all threads.
    fn drain(&self) -> MutexGuard<'_, Drained> {
        let mut drained = self.drained.lock();
        let taken = &mut drained.taken;
        {
            // All locked at once: a line that was written before another one is not drained after
            // it.
            let mut buffers: Vec<_> = self.buffers.all().map(Mutex::lock).collect();
            taken.resize_with(buffers.len(), Waiting::default);
            for (buffer, taken) in buffers.iter_mut().zip(taken) {
                buffer.swap(taken);
            }
        }
        self.count_dropped(drained.merge(self.bounds));
        drained
    }
}

impl AuditSink for FlowLog {
    fn write(&self, line: &[u8], ended: Instant, to: Destination) {
        let mut buffer = self.buffers.mine().lock();
        let is_first = buffer.is_empty();
        let taken = buffer.push(line, ended, to, self.bounds);
        drop(buffer);
        if !taken {
            self.count_dropped(1);
        }
        // After a drain, a writer that sleeps is woken again by the next line.
        if is_first {
            self.notify.notify_one();
        }
    }
}

/// The drained lines of all threads.
#[derive(Default)]
struct Drained {
    flows: NewestFlows,
    /// Lines that wait for the writer of the log.
    log: LineBuffer,
    /// Empty buffers, which a drain swaps with those of the threads to reuse their allocations.
    taken: Vec<Waiting>,
}

impl Drained {
    /// Distributes the drained lines in the order in which their flows ended. Returns the number of
    /// lines that the log has no room for.
    fn merge(&mut self, of_buffer: Bounds) -> u64 {
        let bounds = Bounds {
            lines: of_buffer.lines * self.taken.len(),
            bytes: of_buffer.bytes * self.taken.len(),
        };
        let mut lines: Vec<_> = self.taken.iter().flat_map(Waiting::lines).collect();
        lines.sort_by_key(|line| line.ended);
        let mut dropped = 0;
        for line in lines {
            if line.to != Destination::Log {
                self.flows.push(line.text);
            }
            if line.to == Destination::Live {
                continue;
            }
            if bounds.admit(&self.log, line.text) {
                self.log.push(line.text, ());
            } else {
                dropped += 1;
            }
        }
        self.taken.iter_mut().for_each(Waiting::clear);
        dropped
    }
}

/// Wakes the writer of the log.
#[derive(Default)]
struct Notify {
    state: Mutex<NotifyState>,
    condvar: Condvar,
}

#[derive(Default)]
struct NotifyState {
    /// A line was written since the last call of [`Notify::wait`].
    notified: bool,
    ended: bool,
}

impl Notify {
    fn notify_one(&self) {
        self.state.lock().notified = true;
        self.condvar.notify_one();
    }

    fn end(&self) {
        self.state.lock().ended = true;
        self.condvar.notify_one();
    }

    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.notified && !state.ended {
            self.condvar.wait_for(&mut state, patience);
        }
        state.notified = false;
        !state.ended
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use addons::shards;

    use super::*;
    use crate::telemetry::ended::end_flows;

    /// A log with the same bounds on every machine.
    fn flow_log() -> FlowLog {
        let mut flow_log = FlowLog::new(&Registry::new()).unwrap();
        flow_log.bounds.bytes = 5_000_000;
        flow_log
    }

    fn taken(flow_log: &FlowLog) -> Vec<usize> {
        let mut batch = LineBuffer::default();
        flow_log.take(&mut batch);
        let lines = batch.iter().map(|(_, line)| str::from_utf8(line).unwrap());
        lines.map(|line| line.parse().unwrap()).collect()
    }

    fn newest(flow_log: &FlowLog) -> Vec<usize> {
        serde_json::from_slice(&flow_log.newest()).unwrap()
    }

    fn write(flow_log: &FlowLog, numbers: impl IntoIterator<Item = usize>, to: Destination) {
        for number in numbers {
            flow_log.write(number.to_string().as_bytes(), Instant::now(), to);
        }
    }

    #[test]
    fn lines_of_several_threads_are_merged_by_the_ends_of_their_flows() {
        let (flow_log, start) = (flow_log(), Instant::now());
        thread::scope(|scope| {
            for first in 0..3 {
                let flow_log = &flow_log;
                scope.spawn(move || {
                    shards::claim(first);
                    for number in (first..999).step_by(3) {
                        let ended = start + Duration::from_micros(number as u64);
                        flow_log.write(number.to_string().as_bytes(), ended, Destination::Both);
                    }
                });
            }
        });
        assert_eq!(newest(&flow_log), (0..999).rev().collect::<Vec<_>>());
        assert_eq!(taken(&flow_log), (0..999).collect::<Vec<_>>());
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
        drop(flow_log.drain());
        let line = reader.try_recv().unwrap();
        assert!(
            flow_log
                .newest()
                .starts_with(format!("[{line},").as_bytes())
        );
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn lines_over_the_bound_are_dropped_from_the_log_alone_and_counted() {
        let flow_log = flow_log();
        write(&flow_log, 0..LINES + 5, Destination::Both);
        assert_eq!(flow_log.dropped(), 5);
        assert_eq!(newest(&flow_log)[..7].last(), Some(&(LINES - 2)));
        assert_eq!(taken(&flow_log), (0..LINES).collect::<Vec<_>>());
        write(&flow_log, [1], Destination::Both);
        assert_eq!((taken(&flow_log), flow_log.dropped()), (vec![1], 5));
    }

    #[test]
    fn waiting_text_is_bounded_in_thread_buffers_and_after_a_drain() {
        let mut flow_log = flow_log();
        flow_log.bounds.bytes = 64_000;
        let line = [b'1'; 1000];
        let write = |lines| {
            (0..lines).for_each(|_| flow_log.write(&line, Instant::now(), Destination::Log));
        };
        write(64 + 5);
        assert_eq!(flow_log.dropped(), 5);
        let buffers = flow_log.buffers.all().count();
        for drains in 1..=buffers + 1 {
            drop(flow_log.drain());
            let over = 64 * drains.saturating_sub(buffers);
            assert_eq!(flow_log.dropped() as usize, 5 + over);
            write(64);
        }
        let mut batch = LineBuffer::default();
        flow_log.take(&mut batch);
        assert_eq!(batch.bytes(), 64_000 * buffers);
        assert_eq!(flow_log.dropped(), 5 + 64 + 64);
    }

    #[test]
    fn a_flood_of_unlogged_lines_takes_no_room_from_the_log() {
        let flow_log = flow_log();
        write(&flow_log, 0..2 * LINES, Destination::Live);
        write(&flow_log, 0..LINES, Destination::Log);
        assert_eq!(taken(&flow_log).len(), LINES);
        assert_eq!(flow_log.dropped(), 0);
        assert_eq!(newest(&flow_log)[0], 2 * LINES - 1);
    }

    #[test]
    fn memory_of_a_burst_is_freed() {
        let flow_log = flow_log();
        let mut batch = LineBuffer::default();
        let line = [b'x'; 300];
        for to in [Destination::Log, Destination::Live] {
            (0..LINES).for_each(|_| flow_log.write(&line, Instant::now(), to));
        }
        flow_log.take(&mut batch);
        assert!(batch.room() > 2 * ROOM);
        flow_log.take(&mut batch);
        flow_log.take(&mut batch);
        let drained = flow_log.drained.lock();
        assert!(batch.room() <= 2 * ROOM && drained.log.room() <= 2 * ROOM);
        assert!(drained.taken.iter().all(|taken| taken.room() <= 6 * ROOM));
        for buffer in flow_log.buffers.all() {
            assert!(buffer.lock().room() <= 6 * ROOM);
        }
    }

    #[test]
    fn a_line_and_the_end_wake_the_writer() {
        let flow_log = flow_log();
        let patience = Duration::from_secs(60);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                let more = [flow_log.wait(patience), flow_log.wait(patience)];
                (more, begun.elapsed() < patience)
            });
            write(&flow_log, [1], Destination::Log);
            // The next line is again the first in its buffer.
            drop(flow_log.drain());
            while flow_log.notify.state.lock().notified {
                thread::yield_now();
            }
            write(&flow_log, [2], Destination::Log);
            assert_eq!(waiting.join().unwrap(), ([true, true], true));
        });
        flow_log.end();
        assert!(!flow_log.wait(patience));
        write(&flow_log, [3], Destination::Both);
        assert_eq!((taken(&flow_log), flow_log.dropped()), (vec![1, 2], 1));
        assert_eq!(newest(&flow_log), [3]);
    }
}
