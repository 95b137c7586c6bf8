//! The lines of flows that ended, on their way to the log and to those who watch.
//!
//! A flow writes its line once, to memory that its own thread has for itself. Whoever wants the
//! lines drains them from all threads: the writer of the audit log a while after the first one,
//! and whoever asks for the newest flows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::observe::{AuditSink, Destination};
use addons::shards::Shards;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prometheus::{IntCounter, Registry};
use tokio::sync::broadcast;

use super::flow_log::FlowLog;
use super::line_buffer::LineBuffer;
use super::lost::Lost;
use super::shard::{ROOM, Shard, Waiting};

/// Text that waits in the shards at most, in bytes; each has its equal share. What comes on top is
/// dropped from the log and counted. As much again may be drained and not yet taken by the
/// writer, as much be with a writer whose disk hangs, and, for the moment of a drain, as much be
/// on its way. A buffer that grows has room for up to twice its text.
const WAITING: usize = 16 * 1024 * 1024;
/// Lines for the log that wait in one shard at most: a bound on what is kept of each beside its
/// text.
const LINES: usize = 16 * 1024;

/// Where flows leave their lines.
pub struct Journal {
    shards: Shards<Mutex<Shard>>,
    bell: Bell,
    /// Held by whoever drains, and never where flows end.
    drained: Mutex<Drained>,
    bounds: Bounds,
    dropped: IntCounter,
    /// Lines of which the log has no record yet.
    lost: Mutex<Option<Lost>>,
}

/// What may wait for the disk.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

impl Bounds {
    /// Whether there is room for one more line.
    pub(super) fn admit<M: Copy>(self, waiting: &LineBuffer<M>, line: &[u8]) -> bool {
        waiting.len() < self.lines && waiting.bytes() + line.len() <= self.bytes
    }
}

impl Journal {
    /// Registers `proxy_audit_lines_dropped_total` and begins.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Audit lines that were lost: the disk failed, or could not keep up.";
        let dropped = IntCounter::new("proxy_audit_lines_dropped_total", help)?;
        registry.register(Box::new(dropped.clone()))?;
        let shards = Shards::<Mutex<Shard>>::default();
        let bounds = Bounds {
            lines: LINES,
            bytes: WAITING / shards.all().count(),
        };
        Ok(Self {
            shards,
            bell: Bell::default(),
            drained: Mutex::default(),
            bounds,
            dropped,
            lost: Mutex::default(),
        })
    }

    /// The newest flows as a JSON array, the newest first. Every flow that ended is among them.
    pub fn newest(&self) -> Vec<u8> {
        self.drain().flows.newest()
    }

    /// The flows that end from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.drain().flows.subscribe()
    }

    /// Counts lines that are lost to the log.
    pub(super) fn count_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.inc_by(lines);
            self.add_lost(Lost::now(lines));
        }
    }

    /// Lost lines of which the log has no record yet.
    pub(super) fn lost(&self) -> Option<Lost> {
        *self.lost.lock()
    }

    /// Takes those lost lines out; the caller records them or adds them back.
    pub(super) fn take_lost(&self) -> Option<Lost> {
        self.lost.lock().take()
    }

    /// Adds lines of which the log has no record, and which are counted already.
    pub(super) fn add_lost(&self, more: Lost) {
        let mut lost = self.lost.lock();
        *lost = Some(lost.map_or(more, |lost| lost.and(more)));
    }

    /// Shows a record of the log itself among the flows.
    pub(super) fn show(&self, record: &[u8]) {
        self.drain().flows.push(record);
    }

    /// How many lines were lost to the log.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Where no line was written since it was last asked, waits for one with `patience`. Says
    /// whether more may come after those that wait now.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        self.bell.wait(patience)
    }

    /// Changes `done`, of which only the room is used again, for what waits for the disk.
    pub(super) fn take(&self, done: &mut LineBuffer) {
        done.clear();
        done.shrink_to(ROOM);
        std::mem::swap(&mut self.drain().log, done);
    }

    /// The log takes nothing any more, but for what waits.
    pub(super) fn end(&self) {
        self.shards.all().for_each(|shard| shard.lock().close());
        self.bell.end();
    }

    /// Brings together what all threads wrote.
    fn drain(&self) -> MutexGuard<'_, Drained> {
        let mut drained = self.drained.lock();
        let taken = &mut drained.taken;
        {
            // All at once: what was written before another line is not drained after it.
            let mut shards: Vec<_> = self.shards.all().map(Mutex::lock).collect();
            taken.resize_with(shards.len(), Waiting::default);
            for (shard, taken) in shards.iter_mut().zip(taken) {
                shard.swap(taken);
            }
        }
        self.count_dropped(drained.merge(self.bounds));
        drained
    }
}

impl AuditSink for Journal {
    fn write(&self, line: &[u8], ended: Instant, to: Destination) {
        let mut shard = self.shards.mine().lock();
        let is_first = shard.is_empty();
        let taken = shard.push(line, ended, to, self.bounds);
        drop(shard);
        if !taken {
            self.count_dropped(1);
        }
        // After a drain, a writer that sleeps is woken again by the next line.
        if is_first {
            self.bell.ring();
        }
    }
}

/// What came from all threads.
#[derive(Default)]
struct Drained {
    flows: FlowLog,
    /// What waits to be taken by the writer of the log.
    log: LineBuffer,
    /// The buffers that shards are given for theirs. Empty but for their room.
    taken: Vec<Waiting>,
}

impl Drained {
    /// Hands on what was taken, what ended first before the rest. Answers how many lines the log
    /// has no room for.
    fn merge(&mut self, of_shard: Bounds) -> u64 {
        let bounds = Bounds {
            lines: of_shard.lines * self.taken.len(),
            bytes: of_shard.bytes * self.taken.len(),
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
struct Bell {
    state: Mutex<Rung>,
    rings: Condvar,
}

#[derive(Default)]
struct Rung {
    /// Since it was last heard.
    rung: bool,
    ended: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().rung = true;
        self.rings.notify_one();
    }

    fn end(&self) {
        self.state.lock().ended = true;
        self.rings.notify_one();
    }

    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.rung && !state.ended {
            self.rings.wait_for(&mut state, patience);
        }
        state.rung = false;
        !state.ended
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use addons::shards;

    use super::*;
    use crate::telemetry::ended::end_flows;

    /// With bounds that are the same on every machine.
    fn journal() -> Journal {
        let mut journal = Journal::new(&Registry::new()).unwrap();
        journal.bounds.bytes = 5_000_000;
        journal
    }

    fn taken(journal: &Journal) -> Vec<usize> {
        let mut batch = LineBuffer::default();
        journal.take(&mut batch);
        let lines = batch.iter().map(|(_, line)| str::from_utf8(line).unwrap());
        lines.map(|line| line.parse().unwrap()).collect()
    }

    fn newest(journal: &Journal) -> Vec<usize> {
        serde_json::from_slice(&journal.newest()).unwrap()
    }

    fn write(journal: &Journal, numbers: impl IntoIterator<Item = usize>, to: Destination) {
        for number in numbers {
            journal.write(number.to_string().as_bytes(), Instant::now(), to);
        }
    }

    #[test]
    fn lines_of_several_threads_are_merged_by_when_their_flows_ended() {
        let (journal, start) = (journal(), Instant::now());
        thread::scope(|scope| {
            for first in 0..3 {
                let journal = &journal;
                scope.spawn(move || {
                    shards::claim(first);
                    for number in (first..999).step_by(3) {
                        let ended = start + Duration::from_micros(number as u64);
                        journal.write(number.to_string().as_bytes(), ended, Destination::Both);
                    }
                });
            }
        });
        assert_eq!(newest(&journal), (0..999).rev().collect::<Vec<_>>());
        assert_eq!(taken(&journal), (0..999).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_goes_where_it_is_to_go() {
        let journal = journal();
        write(&journal, [1], Destination::Both);
        write(&journal, [2], Destination::Live);
        write(&journal, [3], Destination::Log);
        write(&journal, [4], Destination::Both);
        assert_eq!(newest(&journal), [4, 2, 1]);
        write(&journal, [5], Destination::Both);
        assert_eq!(taken(&journal), [1, 3, 4, 5]);
        assert_eq!(newest(&journal), [5, 4, 2, 1]);
        assert!(taken(&journal).is_empty());
    }

    #[test]
    fn who_comes_is_shown_the_flows_that_end_from_then_on() {
        let journal = Arc::new(journal());
        end_flows(Arc::clone(&journal) as _, 3);
        let mut reader = journal.subscribe();
        end_flows(Arc::clone(&journal) as _, 1);
        drop(journal.drain());
        let line = reader.try_recv().unwrap();
        assert!(journal.newest().starts_with(format!("[{line},").as_bytes()));
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn lines_for_which_there_is_no_room_are_dropped_from_the_log_alone_and_counted() {
        let journal = journal();
        write(&journal, 0..LINES + 5, Destination::Both);
        assert_eq!(journal.dropped(), 5);
        assert_eq!(newest(&journal)[..7].last(), Some(&(LINES - 2)));
        assert_eq!(taken(&journal), (0..LINES).collect::<Vec<_>>());
        write(&journal, [1], Destination::Both);
        assert_eq!((taken(&journal), journal.dropped()), (vec![1], 5));
    }

    #[test]
    fn text_that_waits_is_bounded_in_the_shards_and_where_it_was_drained() {
        let mut journal = journal();
        journal.bounds.bytes = 64_000;
        let line = [b'1'; 1000];
        let write = |lines| {
            (0..lines).for_each(|_| journal.write(&line, Instant::now(), Destination::Log));
        };
        write(64 + 5);
        assert_eq!(journal.dropped(), 5);
        let shards = journal.shards.all().count();
        for drains in 1..=shards + 1 {
            drop(journal.drain());
            let over = 64 * drains.saturating_sub(shards);
            assert_eq!(journal.dropped() as usize, 5 + over);
            write(64);
        }
        let mut batch = LineBuffer::default();
        journal.take(&mut batch);
        assert_eq!(batch.bytes(), 64_000 * shards);
        assert_eq!(journal.dropped(), 5 + 64 + 64);
    }

    #[test]
    fn a_flood_that_the_log_does_not_have_takes_none_of_its_room() {
        let journal = journal();
        write(&journal, 0..2 * LINES, Destination::Live);
        write(&journal, 0..LINES, Destination::Log);
        assert_eq!(taken(&journal).len(), LINES);
        assert_eq!(journal.dropped(), 0);
        assert_eq!(newest(&journal)[0], 2 * LINES - 1);
    }

    #[test]
    fn what_a_burst_took_is_given_back() {
        let journal = journal();
        let mut batch = LineBuffer::default();
        let line = [b'x'; 300];
        for to in [Destination::Log, Destination::Live] {
            (0..LINES).for_each(|_| journal.write(&line, Instant::now(), to));
        }
        journal.take(&mut batch);
        assert!(batch.room() > 2 * ROOM);
        journal.take(&mut batch);
        journal.take(&mut batch);
        let drained = journal.drained.lock();
        assert!(batch.room() <= 2 * ROOM && drained.log.room() <= 2 * ROOM);
        assert!(drained.taken.iter().all(|taken| taken.room() <= 6 * ROOM));
        for shard in journal.shards.all() {
            assert!(shard.lock().room() <= 6 * ROOM);
        }
    }

    #[test]
    fn a_line_wakes_who_waits_and_so_does_the_end() {
        let journal = journal();
        let patience = Duration::from_secs(60);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                let more = [journal.wait(patience), journal.wait(patience)];
                (more, begun.elapsed() < patience)
            });
            write(&journal, [1], Destination::Log);
            // The line after a drain is the first again.
            drop(journal.drain());
            while journal.bell.state.lock().rung {
                thread::yield_now();
            }
            write(&journal, [2], Destination::Log);
            assert_eq!(waiting.join().unwrap(), ([true, true], true));
        });
        journal.end();
        assert!(!journal.wait(patience));
        write(&journal, [3], Destination::Both);
        assert_eq!((taken(&journal), journal.dropped()), (vec![1, 2], 1));
        assert_eq!(newest(&journal), [3]);
    }
}
