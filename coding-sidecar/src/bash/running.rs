//! A running command: relays its output at the client's pace, and ends the command.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::net::Shutdown;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::orphans::Supervisors;
use super::output::{Line, Output};
use super::supervisor::Report;
use crate::connection::Stream;

/// The time that a supervisor has to kill its command; after that, the sidecar kills the
/// supervisor. Longer than the supervisor's own `KILL_TIMEOUT`.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(12);
/// The most time for each further piece of output once the supervisor has ended; after that, the
/// rest of the output is dropped. By then, a process holds the pipes open only if it could not be
/// killed or if the supervisor itself was killed.
const REST_TIMEOUT: Duration = Duration::from_millis(500);
/// The most bytes of a supervisor's report.
const REPORT_BYTES_MAX: u64 = 4096;

/// The exit code that stands for a shell ended by SIGKILL.
const KILLED: i32 = 128 + 9;

/// A supervisor process, its pipes, and the channel to the client of the command.
pub struct Running {
    pub id: Pid,
    /// The start time of the supervisor, in clock ticks since boot.
    pub started: u64,
    pub child: Child,
    pub control: UnixStream,
    pub stdout: Output<ChildStdout>,
    pub stderr: Output<ChildStderr>,
    pub lines: mpsc::Sender<Bytes>,
    pub supervisors: Arc<Supervisors>,
}

/// The reason why the output is no longer relayed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stop {
    Ended,
    TimedOut,
    ClientGone,
    ShuttingDown,
}

impl Running {
    /// Relays the output until the command ends, or ends the command at its deadline, when the
    /// client disconnects or when `stopping` becomes true. Sends the last line, unless the client
    /// has disconnected.
    pub async fn run(
        mut self,
        deadline: Instant,
        client: &Stream,
        mut stopping: watch::Receiver<bool>,
    ) {
        let lines = self.lines.clone();
        let stop = async {
            tokio::select! {
                () = sleep_until(deadline) => Stop::TimedOut,
                () = client.hung_up() => Stop::ClientGone,
                () = lines.closed() => Stop::ClientGone,
                _ = stopping.wait_for(|stopping| *stopping) => Stop::ShuttingDown,
            }
        };
        let reason = tokio::select! {
            biased;
            reason = stop => reason,
            reason = self.relay() => reason,
        };
        let report = self.end().await;
        if reason != Stop::ClientGone {
            self.relay_rest().await;
            let line = last_line(reason, report);
            // The client may have gone.
            let _ = self.lines.send(line).await;
        }
    }

    /// Sends output until the supervisor ends. Reads output only if the channel has room for it, so
    /// that the command waits for a slow client. Cancel safe.
    async fn relay(&mut self) -> Stop {
        loop {
            let Ok(place) = self.lines.reserve().await else {
                return Stop::ClientGone;
            };
            tokio::select! {
                Some(line) = self.stdout.next(), if !self.stdout.ended() => place.send(line),
                Some(line) = self.stderr.next(), if !self.stderr.ended() => place.send(line),
                _ = self.child.wait() => return Stop::Ended,
            }
        }
    }

    /// Ends the command, if it still runs, and waits until the supervisor has killed all processes.
    /// Returns the supervisor's report; `None` if the supervisor ended without one, for example
    /// because it was killed.
    async fn end(&mut self) -> Option<Report> {
        // Has no effect if the supervisor has ended.
        let _ = rustix::net::shutdown(&self.control, Shutdown::Write);
        if self.child.id().is_some() {
            // A command may have stopped its supervisor with SIGSTOP.
            let _ = kill_process(self.id, Signal::CONT);
        }
        if timeout(SUPERVISOR_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            // Has no effect if the supervisor has ended meanwhile.
            let _ = self.child.start_kill();
            let _ = self.child.wait().await;
        }
        self.supervisors.remove(self.id);
        let mut text = Vec::new();
        let read = (&mut self.control)
            .take(REPORT_BYTES_MAX)
            .read_to_end(&mut text)
            .await;
        let report: Option<Report> = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        if report.as_ref().is_none_or(|report| report.left > 0) {
            self.supervisors.sweep(self.started);
        }
        report
    }

    /// Sends the output that the pipes still hold.
    async fn relay_rest(&mut self) {
        while !(self.stdout.ended() && self.stderr.ended()) {
            let Ok(place) = self.lines.reserve().await else {
                return;
            };
            let next = async {
                tokio::select! {
                    line = self.stdout.next(), if !self.stdout.ended() => line,
                    line = self.stderr.next(), if !self.stderr.ended() => line,
                    else => None,
                }
            };
            match timeout(REST_TIMEOUT, next).await {
                Ok(Some(line)) => place.send(line),
                // One of the streams ended.
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
}

/// The last line of the response, which says how the command ended.
fn last_line(reason: Stop, report: Option<Report>) -> Bytes {
    let outcome = report.map(|report| report.outcome);
    let line = match (reason, &outcome) {
        (Stop::ShuttingDown, _) => Line::Error {
            message: "the sidecar is shutting down; the command was ended",
        },
        // The supervisor was killed, since it did not end in time.
        (Stop::TimedOut, None) => Line::Done {
            exit_code: KILLED,
            timed_out: true,
        },
        (_, None) => Line::Error {
            message: "the supervisor of the command was killed; the command was ended",
        },
        (_, Some(Ok(exit_code))) => Line::Done {
            exit_code: *exit_code,
            timed_out: reason == Stop::TimedOut,
        },
        (_, Some(Err(message))) => Line::Error { message },
    };
    line.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_reports_the_time_limit_even_without_a_supervisors_report() {
        let line = last_line(Stop::TimedOut, None);
        assert_eq!(
            line,
            "{\"type\":\"done\",\"exitCode\":137,\"timedOut\":true}\n"
        );
        let line = last_line(Stop::Ended, None);
        assert!(line.starts_with(b"{\"type\":\"error\""), "{line:?}");
    }
}
