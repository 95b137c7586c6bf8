//! Writing the audit log without making anybody wait for a disk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use addons::observe::{AuditLine, AuditSink};
use parking_lot::Mutex;
use prometheus::IntCounter;

use super::audit_file::AuditFile;
use super::light::{Light, Lit};
use crate::config::AuditConfig;

/// Lines that wait for the disk at most; what comes on top is dropped and counted.
const WAITING: usize = 16 * 1024;
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

struct Lines {
    sender: SyncSender<Message>,
    dropped: IntCounter,
}

enum Message {
    Line(Arc<AuditLine>),
    /// Nothing comes after it.
    End,
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
        let (sender, receiver) = sync_channel(WAITING);
        let mut writer = Writer {
            config,
            light,
            file: None,
            failed_at: None,
            json: Vec::new(),
            dropped: dropped.clone(),
        };
        writer.open();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let handle = thread.spawn(move || writer.run(&receiver))?;
        Ok(Self {
            lines: Arc::new(Lines { sender, dropped }),
            writer: Mutex::new(Some(handle)),
        })
    }

    /// Where flows leave their lines.
    pub fn sink(&self) -> Arc<dyn AuditSink> {
        Arc::clone(&self.lines) as Arc<dyn AuditSink>
    }

    /// Writes what waits and ends.
    pub fn finish(&self) {
        // An error says that the writer is gone already.
        let _ = self.lines.sender.send(Message::End);
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

impl AuditSink for Lines {
    fn write(&self, line: Arc<AuditLine>) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Line(line)) {
            self.dropped.inc();
        }
    }
}

struct Writer {
    config: AuditConfig,
    light: Light,
    file: Option<(AuditFile, Lit)>,
    failed_at: Option<Instant>,
    json: Vec<u8>,
    dropped: IntCounter,
}

impl Writer {
    fn run(mut self, lines: &Receiver<Message>) {
        let mut unflushed: Option<Instant> = None;
        loop {
            let patience = unflushed.map_or(RETRY, |since| FLUSH.saturating_sub(since.elapsed()));
            match lines.recv_timeout(patience) {
                Ok(Message::Line(line)) => {
                    unflushed.get_or_insert_with(Instant::now);
                    if self.take_all(&line, lines).is_break() {
                        self.flush();
                        return;
                    }
                    std::thread::sleep(GATHERING);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => {
                    self.flush();
                    return;
                }
            }
            if unflushed.is_some_and(|since| since.elapsed() >= FLUSH) {
                self.flush();
                unflushed = None;
            }
            if self.failed_at.is_some_and(|at| at.elapsed() >= RETRY) {
                self.open();
            }
        }
    }

    /// Takes a line and what has gathered behind it; a break says that nothing comes any more.
    fn take_all(&mut self, line: &AuditLine, lines: &Receiver<Message>) -> ControlFlow<()> {
        self.take(line);
        loop {
            match lines.try_recv() {
                Ok(Message::Line(line)) => self.take(&line),
                Ok(Message::End) | Err(TryRecvError::Disconnected) => return ControlFlow::Break(()),
                Err(TryRecvError::Empty) => return ControlFlow::Continue(()),
            }
        }
    }

    fn take(&mut self, line: &AuditLine) {
        self.json.clear();
        if serde_json::to_writer(&mut self.json, line).is_err() {
            return;
        }
        let appended = self.file.as_mut().map(|(file, _)| file.append(&self.json));
        match appended {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.dropped.inc();
                self.fail(&error);
            }
            None => self.dropped.inc(),
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
        self.file = None;
        self.failed_at = Some(Instant::now());
    }
}
