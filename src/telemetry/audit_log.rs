//! Writing the audit log without making anybody wait for a disk.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use addons::observe::AuditSink;
use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

use super::audit_file::AuditFile;
use super::light::{Light, Lit};
use super::line_buffer::LineBuffer;
use crate::config::AuditConfig;

/// Lines that wait for the disk at most, 48 MiB of the longest; what comes on top is dropped and
/// counted.
const WAITING: usize = 16 * 1024;
/// The room that is kept for them, in bytes: enough for what gathers under load. What a burst or
/// a slow disk took on top of it is given back.
const ROOM: usize = 1024 * 1024;
/// Lines reach the system at the latest after this time.
const FLUSH: Duration = Duration::from_millis(200);
/// How long the writer lets lines gather, so that flows do not wake it one by one.
const GATHERING: Duration = Duration::from_millis(10);
/// How long a disk that failed is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// The thread that writes, and the way to it.
pub struct AuditLog {
    lines: Arc<Lines>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What waits to be written.
struct Lines {
    waiting: Mutex<Waiting>,
    /// Told of the first line, and of the end.
    arrived: Condvar,
    dropped: IntCounter,
}

#[derive(Default)]
struct Waiting {
    lines: LineBuffer,
    /// Nothing comes any more.
    ended: bool,
}

impl AuditLog {
    /// Begins to write. `light` is on while the disk takes what it is given.
    pub fn start(
        config: AuditConfig,
        light: Light,
        metrics: &prometheus::Registry,
    ) -> std::io::Result<Self> {
        let help = "Audit lines that were lost: the disk failed, or could not keep up.";
        let dropped = IntCounter::new("proxy_audit_lines_dropped_total", help)
            .map_err(std::io::Error::other)?;
        metrics
            .register(Box::new(dropped.clone()))
            .map_err(std::io::Error::other)?;
        let lines = Arc::new(Lines::new(dropped.clone()));
        let mut writer = Writer {
            config,
            light,
            file: None,
            failed_at: None,
            dropped,
        };
        writer.open();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let waiting = Arc::clone(&lines);
        let handle = thread.spawn(move || writer.run(&waiting))?;
        Ok(Self {
            lines,
            writer: Mutex::new(Some(handle)),
        })
    }

    /// Where flows leave their lines.
    pub fn sink(&self) -> Arc<dyn AuditSink> {
        Arc::clone(&self.lines) as Arc<dyn AuditSink>
    }

    /// Writes what waits and ends.
    pub fn finish(&self) {
        self.lines.waiting.lock().ended = true;
        self.lines.arrived.notify_one();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

impl AuditSink for Lines {
    fn write(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        let before = waiting.lines.len();
        if before >= WAITING || waiting.ended {
            drop(waiting);
            self.dropped.inc();
            return;
        }
        waiting.lines.push(line);
        drop(waiting);
        // The writer only sleeps for long where nothing waits.
        if before == 0 {
            self.arrived.notify_one();
        }
    }
}

impl Lines {
    fn new(dropped: IntCounter) -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            dropped,
        }
    }

    /// Changes `done`, of which only the room is used again, for what waits; where nothing does,
    /// waits for it with `patience`. Says whether more may come.
    fn take(&self, done: &mut LineBuffer, patience: Duration) -> bool {
        done.clear();
        done.shrink_to(ROOM);
        let mut waiting = self.waiting.lock();
        if waiting.lines.is_empty() && !waiting.ended {
            self.arrived.wait_for(&mut waiting, patience);
        }
        std::mem::swap(&mut waiting.lines, done);
        !waiting.ended
    }
}

struct Writer {
    config: AuditConfig,
    light: Light,
    file: Option<(AuditFile, Lit)>,
    failed_at: Option<Instant>,
    dropped: IntCounter,
}

impl Writer {
    fn run(mut self, lines: &Lines) {
        let mut batch = LineBuffer::default();
        let mut unflushed: Option<Instant> = None;
        let mut more = true;
        while more {
            let patience = unflushed.map_or(RETRY, |since| FLUSH.saturating_sub(since.elapsed()));
            more = lines.take(&mut batch, patience);
            if !batch.is_empty() {
                unflushed.get_or_insert_with(Instant::now);
                batch.iter().for_each(|line| self.append(line));
                std::thread::sleep(GATHERING);
            }
            if unflushed.is_some_and(|since| since.elapsed() >= FLUSH) {
                self.flush();
                unflushed = None;
            }
            if self.failed_at.is_some_and(|at| at.elapsed() >= RETRY) {
                self.open();
            }
        }
        self.flush();
    }

    fn append(&mut self, line: &[u8]) {
        let Some((file, _)) = &mut self.file else {
            self.dropped.inc();
            return;
        };
        if let Err(error) = file.append(line) {
            self.fail(&error);
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(|(file, _)| file.flush()) {
            self.fail(&error);
        }
    }

    fn open(&mut self) {
        match AuditFile::open(self.config.clone()) {
            Ok(file) => {
                self.file = Some((file, self.light.on()));
                self.failed_at = None;
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Flows go on: an audit that blocks the appliance would be a way to stop it.
    fn fail(&mut self, error: &std::io::Error) {
        if self.failed_at.is_none() {
            tracing::error!(path = %self.config.path.display(), %error, "the audit log cannot be written");
        }
        if let Some((file, _)) = self.file.take() {
            self.dropped.inc_by(file.unwritten() as u64);
        }
        self.failed_at = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::telemetry::audit_file::verify;
    use crate::telemetry::ended::end_flows;

    fn start(path: PathBuf) -> AuditLog {
        let config = AuditConfig {
            path,
            max_bytes: 1 << 30,
            keep: 1,
            lines_per_minute_per_container: 6000,
        };
        AuditLog::start(config, Light::default(), &prometheus::Registry::new()).unwrap()
    }

    #[test]
    fn the_end_writes_all_that_waits_and_counts_what_comes_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        end_flows(log.sink(), 2000);
        log.finish();
        assert_eq!(verify(&path).unwrap(), 2000);
        assert_eq!(log.lines.dropped.get(), 0);
        end_flows(log.sink(), 3);
        assert_eq!(log.lines.dropped.get(), 3);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let lines = Arc::new(Lines::new(IntCounter::new("dropped", "dropped").unwrap()));
        end_flows(Arc::clone(&lines) as _, WAITING + 5);
        assert_eq!(lines.dropped.get(), 5);
        let mut batch = LineBuffer::default();
        assert!(lines.take(&mut batch, Duration::ZERO));
        assert_eq!(batch.len(), WAITING);
        end_flows(Arc::clone(&lines) as _, 1);
        assert_eq!(lines.dropped.get(), 5);
        assert!(lines.take(&mut batch, Duration::ZERO));
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn what_a_burst_took_is_given_back() {
        let lines = Lines::new(IntCounter::new("dropped", "dropped").unwrap());
        let mut batch = LineBuffer::default();
        for _ in 0..3 {
            (0..WAITING).for_each(|_| lines.write(&[b'x'; 1000]));
            assert!(lines.take(&mut batch, Duration::ZERO));
            assert_eq!(batch.len(), WAITING);
            assert!(batch.room() > ROOM);
        }
        lines.take(&mut batch, Duration::ZERO);
        lines.take(&mut batch, Duration::ZERO);
        assert!(batch.room() <= ROOM && lines.waiting.lock().lines.room() <= ROOM);
    }

    #[test]
    fn all_lines_that_a_full_disk_lost_are_counted() {
        let log = start("/dev/full".into());
        end_flows(log.sink(), 1000);
        log.finish();
        assert_eq!(log.lines.dropped.get(), 1000);
    }
}
