//! Writing the audit log without making anybody wait for a disk.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::audit_file::AuditFile;
use super::journal::Journal;
use super::light::{Light, Lit};
use super::line_buffer::LineBuffer;
use crate::config::AuditConfig;

/// Lines reach the system at the latest after this time.
const FLUSH: Duration = Duration::from_millis(200);
/// How long the writer lets lines gather, so that flows do not wake it one by one.
const GATHERING: Duration = Duration::from_millis(10);
/// How long a disk that failed is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// The thread that writes what the journal has for the log.
pub struct AuditLog {
    journal: Arc<Journal>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Begins to write. `light` is on while the disk takes what it is given.
    pub fn start(
        config: AuditConfig,
        light: Light,
        metrics: &prometheus::Registry,
    ) -> std::io::Result<Self> {
        let journal = Journal::new(metrics).map_err(std::io::Error::other)?;
        let journal = Arc::new(journal);
        let mut writer = Writer {
            config,
            light,
            file: None,
            failed_at: None,
            journal: Arc::clone(&journal),
        };
        writer.open();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let handle = thread.spawn(move || writer.run())?;
        Ok(Self {
            journal,
            writer: Mutex::new(Some(handle)),
        })
    }

    /// Where flows leave their lines.
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// Writes what waits and ends.
    pub fn finish(&self) {
        self.journal.end();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

struct Writer {
    config: AuditConfig,
    light: Light,
    file: Option<(AuditFile, Lit)>,
    failed_at: Option<Instant>,
    journal: Arc<Journal>,
}

impl Writer {
    fn run(mut self) {
        let mut batch = LineBuffer::default();
        let mut unflushed: Option<Instant> = None;
        let mut more = true;
        while more {
            let patience = unflushed.map_or(RETRY, |since| FLUSH.saturating_sub(since.elapsed()));
            more = self.journal.wait(patience);
            self.journal.take(&mut batch);
            if !batch.is_empty() {
                unflushed.get_or_insert_with(Instant::now);
                batch.iter().for_each(|(_, line)| self.append(line));
            }
            if unflushed.is_some_and(|since| since.elapsed() >= FLUSH) {
                self.flush();
                unflushed = None;
            }
            if self.failed_at.is_some_and(|at| at.elapsed() >= RETRY) {
                self.open();
            }
            if more {
                std::thread::sleep(GATHERING);
            }
        }
        self.flush();
    }

    fn append(&mut self, line: &[u8]) {
        let Some((file, _)) = &mut self.file else {
            self.journal.count_dropped(1);
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
            self.journal.count_dropped(file.unwritten() as u64);
        }
        self.failed_at = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use addons::observe::{AuditSink, Destination};
    use addons::shards;
    use serde_json::Value;

    use super::*;
    use crate::telemetry::audit_file::verify;
    use crate::telemetry::ended::end_flows;

    fn start(path: PathBuf) -> AuditLog {
        let config = AuditConfig {
            path,
            max_bytes: 1 << 30,
            keep: 1,
            lines_per_minute_per_container: 6000,
            bytes_per_minute_per_container: 2 << 20,
        };
        AuditLog::start(config, Light::default(), &prometheus::Registry::new()).unwrap()
    }

    #[test]
    fn the_end_writes_all_that_waits_and_counts_what_comes_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        end_flows(log.journal(), 2000);
        log.finish();
        assert_eq!(verify(&path).unwrap(), 2000);
        assert_eq!(log.journal.dropped(), 0);
        end_flows(log.journal(), 3);
        assert_eq!(log.journal.dropped(), 3);
    }

    #[test]
    fn nothing_is_lost_or_doubled_while_a_reader_drains_what_is_for_the_log() {
        const THREADS: usize = 3;
        const LINES: u64 = 5000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = start(path.clone());
        let (journal, done) = (log.journal(), AtomicBool::new(false));
        let write = |thread| {
            shards::claim(thread);
            for number in 0..LINES {
                let line = format!(r#"{{"thread":{thread},"number":{number}}}"#);
                journal.write(line.as_bytes(), Instant::now(), Destination::Both);
            }
        };
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Relaxed) {
                    journal.newest();
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
        assert_eq!(verify(&path).unwrap(), THREADS as u64 * LINES);
        let key = |line: &Value| ["thread", "number"].map(|key| line[key].as_u64().unwrap());
        let file = std::fs::read_to_string(&path).unwrap();
        let file = file.lines().map(|line| serde_json::from_str(line).unwrap());
        let file: Vec<_> = file.map(|line| key(&line)).collect();
        for thread in 0..THREADS as u64 {
            let numbers = file.iter().filter(|[of, _]| *of == thread);
            assert!(numbers.map(|[_, number]| *number).eq(0..LINES));
        }
        let newest: Vec<Value> = serde_json::from_slice(&journal.newest()).unwrap();
        assert!(
            newest.len() == 1000 && newest.iter().map(key).eq(file.into_iter().rev().take(1000))
        );
        assert_eq!(journal.dropped(), 0);
    }

    #[test]
    fn a_live_reader_sees_all_flows_in_the_order_in_which_they_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = start(dir.path().join("audit.jsonl"));
        let journal = log.journal();
        let mut reader = journal.subscribe();
        for round in 0..5 {
            let write = |number: usize, to| {
                journal.write(number.to_string().as_bytes(), Instant::now(), to);
            };
            thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        shards::claim(thread);
                        for number in 0..200 {
                            let number = 2 * (200 * round + number) + thread;
                            write(
                                number,
                                [Destination::Both, Destination::Live][number % 3 / 2],
                            );
                        }
                    });
                }
            });
            let seen = (0..400).map(|_| reader.blocking_recv().unwrap().parse().unwrap());
            let seen: Vec<usize> = seen.collect();
            for thread in 0..2 {
                let of_thread = seen.iter().filter(|number| *number % 2 == thread);
                let written = (0..200).map(|number| 2 * (200 * round + number) + thread);
                assert!(of_thread.copied().eq(written), "{seen:?}");
            }
        }
        log.finish();
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn all_lines_that_a_full_disk_lost_are_counted() {
        let log = start("/dev/full".into());
        end_flows(log.journal(), 1000);
        log.finish();
        assert_eq!(log.journal.dropped(), 1000);
    }
}
