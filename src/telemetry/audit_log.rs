//! Writes the audit log on its own thread, so that no flow waits for the disk.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::audit_file::{AuditFile, unrecorded_loss};
use super::audit_head::AuditHead;
use super::flow_log::FlowLog;
use super::health_flag::{HealthFlag, HealthGuard};
use crate::config::AuditConfig;

/// How long an appended line may wait to be written. So while the disk works, the line of a flow is
/// written within this time, plus a few times [`GATHERING`], after the flow has ended.
const FLUSH: Duration = Duration::from_millis(200);
/// The pause in which the writer lets lines gather, so that not every flow wakes it.
const GATHERING: Duration = Duration::from_millis(10);
/// The pause before another attempt after the disk failed, and between two records of losses.
const RETRY: Duration = Duration::from_secs(1);

/// The thread that writes the flow log's lines to the audit log.
pub struct AuditLog {
    flow_log: Arc<FlowLog>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Starts the thread. `flag` is on while the log can be written. A loss that an earlier process
    /// could not record is recorded by this one.
    pub fn start(
        config: AuditConfig,
        flag: HealthFlag,
        metrics: &prometheus::Registry,
    ) -> io::Result<Self> {
        let flow_log = FlowLog::new(metrics).map_err(io::Error::other)?;
        let flow_log = Arc::new(flow_log);
        if let Some(lost) = unrecorded_loss(&config.path) {
            flow_log.add_lost(lost);
        }
        let mut writer = Writer {
            config,
            flag,
            file: None,
            guard: None,
            has_failed: false,
            flow_log: Arc::clone(&flow_log),
        };
        writer.recover();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let handle = thread.spawn(move || writer.run())?;
        Ok(Self {
            flow_log,
            writer: Mutex::new(Some(handle)),
        })
    }

    pub fn flow_log(&self) -> Arc<FlowLog> {
        Arc::clone(&self.flow_log)
    }

    /// Writes the waiting lines and ends the thread. Later lines are counted as lost.
    pub fn finish(&self) {
        self.flow_log.end();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

struct Writer {
    config: AuditConfig,
    flag: HealthFlag,
    file: Option<AuditFile>,
    /// Held while the log can be written.
    guard: Option<HealthGuard>,
    has_failed: bool,
    flow_log: Arc<FlowLog>,
}

impl Writer {
    fn run(mut self) {
        let mut unflushed: Option<Instant> = None;
        let mut recovered = Instant::now();
        let mut more = true;
        while more {
            let limit = unflushed.map_or(RETRY, |since| FLUSH.saturating_sub(since.elapsed()));
            more = self.flow_log.wait(limit);
            let lines = self.flow_log.take();
            if !lines.is_empty() {
                unflushed.get_or_insert_with(Instant::now);
                lines.iter().for_each(|line| self.append(line));
            }
            if unflushed.is_some_and(|since| since.elapsed() >= FLUSH) {
                self.flush();
                unflushed = None;
            }
            if recovered.elapsed() >= RETRY {
                self.recover();
                recovered = Instant::now();
            }
            if more {
                std::thread::sleep(GATHERING);
            }
        }
        self.flush();
        self.recover();
    }

    fn append(&mut self, line: &[u8]) {
        let Some(file) = &mut self.file else {
            self.flow_log.count_dropped(1);
            return;
        };
        if let Err(error) = file.append(line) {
            self.fail(&error);
        }
    }

    fn flush(&mut self) {
        let lost = self.flow_log.lost();
        let flushed = self.file.as_mut().map(|file| file.flush(lost));
        if let Some(Err(error)) = flushed {
            self.fail(&error);
        }
    }

    /// Opens the log if it is not open, and records lost lines if there are any. If both succeed,
    /// the log counts as healthy.
    fn recover(&mut self) {
        let recovered = self.open().and_then(|()| self.record_loss());
        match recovered {
            Ok(()) => {
                self.guard.get_or_insert_with(|| self.flag.on());
                self.has_failed = false;
            }
            Err(error) => self.fail(&error),
        }
    }

    fn open(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(AuditFile::open(self.config.clone())?);
        }
        Ok(())
    }

    /// Appends and writes a record of the lines that were lost since the previous record, if any.
    fn record_loss(&mut self) -> io::Result<()> {
        let Some(file) = self
            .file
            .as_mut()
            .filter(|_| self.flow_log.lost().is_some())
        else {
            return Ok(());
        };
        // Earlier lines are written first, so that a failed write of the record leaves nothing
        // but the record unwritten.
        file.flush(self.flow_log.lost())?;
        let Some(lost) = self.flow_log.take_lost() else {
            return Ok(());
        };
        let record = lost.record();
        let appended = file.append(&record);
        let written = appended.and_then(|()| file.flush(self.flow_log.lost()));
        if written.is_err() && file.discard() > 0 {
            self.flow_log.add_lost(lost);
        } else {
            self.flow_log.show(&record);
        }
        written
    }

    /// Closes the log, and counts the appended lines that are lost. Logs only the first error of an
    /// outage. Flows continue: if a failed audit blocked them, a full disk would stop every flow.
    fn fail(&mut self, error: &io::Error) {
        if !self.has_failed {
            tracing::error!(path = %self.config.path.display(), %error, "the audit log cannot be written");
        }
        self.has_failed = true;
        self.guard = None;
        if let Some(mut file) = self.file.take() {
            self.flow_log.count_dropped(file.discard());
        }
        if let Some(lost) = self.flow_log.lost()
            && let Err(error) = AuditHead::note_lost(&self.config.path, lost)
        {
            tracing::debug!(%error, "the number of lost audit lines cannot be stored for the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use addons::observe::{AuditSink, Destination};
    use serde_json::Value;

    use super::*;
    use crate::telemetry::audit_verify::verify;
    use crate::telemetry::ended::end_flows;
    use crate::telemetry::newest_flows::Line;

    fn line_text(line: Line) -> String {
        String::from_utf8(line.to_vec()).unwrap()
    }

    fn start(path: PathBuf) -> AuditLog {
        start_with(path, HealthFlag::default())
    }

    fn start_with(path: PathBuf, flag: HealthFlag) -> AuditLog {
        let config = AuditConfig {
            path,
            max_bytes: 1 << 30,
            keep: 1,
        };
        AuditLog::start(config, flag, &prometheus::Registry::new()).unwrap()
    }

    #[test]
    fn finish_writes_the_waiting_lines_and_counts_later_ones_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        end_flows(log.flow_log(), 2000);
        log.finish();
        assert_eq!(verify(&path).unwrap().lines, 2000);
        assert_eq!(log.flow_log.dropped(), 0);
        end_flows(log.flow_log(), 3);
        assert_eq!(log.flow_log.dropped(), 3);
    }

    #[test]
    fn no_line_is_lost_or_doubled_while_a_reader_lists_the_newest_flows() {
        const THREADS: usize = 3;
        const LINES: u64 = 5000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        let (flow_log, done) = (log.flow_log(), AtomicBool::new(false));
        let write = |thread| {
            for number in 0..LINES {
                let line = format!(r#"{{"thread":{thread},"number":{number}}}"#);
                flow_log.write(line.as_bytes(), Destination::Both);
            }
        };
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Relaxed) {
                    flow_log.newest();
                }
            });
            let write = &write;
            let writers = [0, 1, 2].map(|thread| scope.spawn(move || write(thread)));
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Relaxed);
            reader.join().unwrap();
        });
        log.finish();
        assert_eq!(verify(&path).unwrap().lines, THREADS as u64 * LINES);
        let key = |line: &Value| ["thread", "number"].map(|key| line[key].as_u64().unwrap());
        let file = std::fs::read_to_string(&path).unwrap();
        let file = file.lines().map(|line| serde_json::from_str(line).unwrap());
        let file: Vec<_> = file.map(|line| key(&line)).collect();
        for thread in 0..THREADS as u64 {
            let numbers = file.iter().filter(|[of, _]| *of == thread);
            assert!(numbers.map(|[_, number]| *number).eq(0..LINES));
        }
        let newest: Vec<Value> = serde_json::from_slice(&flow_log.newest()).unwrap();
        assert!(
            newest.len() == 1000 && newest.iter().map(key).eq(file.into_iter().rev().take(1000))
        );
        assert_eq!(flow_log.dropped(), 0);
    }

    #[test]
    fn a_live_reader_sees_every_flow_and_those_of_one_thread_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let log = start(dir.path().join("audit.jsonl"));
        let flow_log = log.flow_log();
        let mut reader = flow_log.subscribe();
        for round in 0..5 {
            let write = |number: usize, to| {
                flow_log.write(number.to_string().as_bytes(), to);
            };
            thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        for number in 0..200 {
                            let number = 2 * (200 * round + number) + thread;
                            let to = [Destination::Both, Destination::Live][number % 3 / 2];
                            write(number, to);
                        }
                    });
                }
            });
            let seen = (0..400).map(|_| line_text(reader.blocking_recv().unwrap()));
            let seen: Vec<usize> = seen.map(|line| line.parse().unwrap()).collect();
            for thread in 0..2 {
                let of_thread = seen.iter().filter(|number| *number % 2 == thread);
                let written = (0..200).map(|number| 2 * (200 * round + number) + thread);
                assert!(of_thread.copied().eq(written), "{seen:?}");
            }
        }
        log.finish();
        assert!(reader.try_recv().is_err());
    }

    /// A log on a disk that is full until the link is removed.
    fn full(dir: &Path) -> PathBuf {
        let path = dir.join("audit.jsonl");
        symlink("/dev/full", &path).unwrap();
        path
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < until, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn all_lines_that_a_full_disk_lost_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let log = start(full(dir.path()));
        end_flows(log.flow_log(), 1000);
        log.finish();
        assert_eq!(log.flow_log.dropped(), 1000);
    }

    #[test]
    fn lost_lines_are_recorded_and_shown_once_the_disk_has_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = full(dir.path());
        let flag = HealthFlag::default();
        let log = start_with(path.clone(), flag.clone());
        let mut reader = log.flow_log().subscribe();
        end_flows(log.flow_log(), 18);
        eventually("the lines are lost", || log.flow_log.dropped() == 18);
        assert!(!flag.is_on());
        std::fs::remove_file(&path).unwrap();
        eventually("the loss is recorded", || log.flow_log.lost().is_none());
        eventually("the flag is on", || flag.is_on());
        end_flows(log.flow_log(), 2);
        log.finish();
        let found = verify(&path).unwrap();
        assert_eq!((found.lines, found.lost, found.gaps), (3, 18, 1));
        assert_eq!((found.unrecorded, log.flow_log.dropped()), (None, 18));
        let text = std::fs::read_to_string(&path).unwrap();
        let record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&record["kind"], &record["count"]),
            (&"lost".into(), &18.into())
        );
        let mut shown = std::iter::from_fn(|| reader.try_recv().ok().map(line_text));
        let shown = shown.find(|line| line.contains("\"lost\""));
        assert!(text.starts_with(shown.unwrap().trim_end_matches('}')));
    }

    #[test]
    fn lost_lines_are_recorded_by_the_next_process_if_the_disk_stayed_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = full(dir.path());
        for (round, lines) in [(1, 5), (2, 7)] {
            let log = start(path.clone());
            end_flows(log.flow_log(), lines);
            log.finish();
            assert_eq!(log.flow_log.dropped(), lines as u64, "round {round}");
        }
        std::fs::remove_file(&path).unwrap();
        start(path.clone()).finish();
        let found = verify(&path).unwrap();
        assert_eq!((found.lines, found.lost, found.unrecorded), (1, 12, None));
        start(path.clone()).finish();
        assert_eq!(verify(&path).unwrap().lines, 1);
    }

    #[test]
    fn lines_that_are_dropped_while_the_disk_works_are_recorded_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        log.flow_log.count_dropped(3);
        eventually("the loss is recorded", || log.flow_log.lost().is_none());
        log.flow_log.count_dropped(4);
        log.finish();
        let found = verify(&path).unwrap();
        assert_eq!((found.lines, found.lost, found.gaps), (2, 7, 2));
    }
}
