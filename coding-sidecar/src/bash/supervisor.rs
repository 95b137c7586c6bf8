//! The process between the sidecar and one command, which ends the command with all descendants.
//!
//! The sidecar starts itself again as `supervise COMMAND`. That process is a child subreaper: a
//! descendant whose parent ends becomes its child, however it was started (`setsid`, two forks,
//! `nohup`), so killing children until none is left kills every descendant. Its standard input is
//! one end of a socket pair. It reads the end of that stream when the sidecar wants the command to
//! end, and also when the sidecar itself was killed. It writes one [`Report`] there.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, set_child_subreaper,
    set_parent_process_death_signal, setsid, waitid,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::children;

/// The shells that are tried, in this order.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
/// How long the supervisor tries to kill what the command left. A process outlives a signal for
/// as long only when it belongs to another user, or waits for a device.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// The first pause between two rounds of killing, doubled up to [`ROUND_PAUSE_MAX`].
const ROUND_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause between two rounds of killing.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Children that are reaped before the next look at the stream: a command can make them faster than
/// they are reaped.
const REAPED_MAX: usize = 256;

/// How a command ended, as its supervisor tells the sidecar.
#[derive(Debug, Deserialize, Serialize)]
pub struct Report {
    /// The code of the shell, 128 and the signal's number where one ended it; or why there is none.
    pub outcome: Result<i32, String>,
    /// Descendants that could not be killed.
    pub left: usize,
}

/// Runs `command` and ends with it.
pub fn supervise(command: &OsStr) -> ExitCode {
    match try_supervise(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coding-sidecar supervise is started by coding-sidecar alone: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_supervise(command: &OsStr) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut answer = control.try_clone()?;
    control.set_nonblocking(true)?;
    // A command may stop its supervisor, but then the death of the sidecar continues it.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    set_child_subreaper(Some(getpid()))?;
    // Leaves the terminal of the sidecar, if it has one. Fails where this process leads a session already.
    let _ = setsid();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let report = runtime
        .block_on(run(command, control))
        .unwrap_or_else(|error| Report {
            outcome: Err(error.to_string()),
            left: 0,
        });
    // The sidecar may be gone by now.
    let _ = answer.write_all(&serde_json::to_vec(&report)?);
    Ok(())
}

async fn run(command: &OsStr, control: UnixStream) -> io::Result<Report> {
    let mut control = tokio::net::UnixStream::from_std(control)?;
    let mut ended = signal(SignalKind::child())?;
    let shell = start(command)?;
    let mut byte = [0];
    let status = tokio::select! {
        status = wait(shell, &mut ended) => status?,
        _ = control.read(&mut byte) => None,
    };
    kill_all(shell, status.and_then(code)).await
}

/// Starts a shell as the leader of a process group.
fn start(command: &OsStr) -> io::Result<Pid> {
    let mut failed = String::new();
    for shell in SHELLS {
        let started = Command::new(shell)
            .arg("-c")
            .arg(command)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        match started {
            Ok(child) => return Ok(Pid::from_child(&child)),
            Err(error) => failed = format!("cannot start {shell}: {error}"),
        }
    }
    Err(io::Error::other(failed))
}

/// Waits until the shell has ended, and reaps descendants that were orphaned and ended. Does not reap
/// the shell, so that its id, which is that of its group, stays taken; but for one that ends between two
/// calls, whose status is returned.
async fn wait(shell: Pid, ended: &mut Signals) -> io::Result<Option<WaitStatus>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        for _ in 0..REAPED_MAX {
            if waitid(WaitId::Pid(shell), options)?.is_some() {
                return Ok(None);
            }
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) if child == shell => return Ok(Some(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => {
                    ended.recv().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The sidecar may want the command to end.
        yield_now().await;
    }
}

/// Kills every child until there is none; the children of a killed one become ours, and die in the
/// next round. `exit_code` is that of the shell if it was reaped.
async fn kill_all(shell: Pid, mut exit_code: Option<i32>) -> io::Result<Report> {
    let deadline = Instant::now() + KILL_PATIENCE;
    let mut pause = ROUND_PAUSE;
    loop {
        let children = children::list()?;
        for child in &children {
            children::kill(*child);
        }
        let mut reaped = 0_usize;
        let none_left = loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) => {
                    if child == shell {
                        exit_code = code(status);
                    }
                    reaped = reaped.saturating_add(1);
                }
                Err(Errno::INTR) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
            // What ended since the round began may have left children that have to be killed.
            if reaped >= children.len() {
                break false;
            }
        };
        if none_left || Instant::now() >= deadline {
            return Ok(Report {
                outcome: exit_code.ok_or_else(|| "the shell cannot be killed".to_owned()),
                left: if none_left { 0 } else { children.len().max(1) },
            });
        }
        if reaped > 0 {
            // The children of those have to be killed before they fork.
            pause = ROUND_PAUSE;
        } else {
            sleep(pause).await;
            pause = (pause * 2).min(ROUND_PAUSE_MAX);
        }
    }
}

/// The exit code as a shell shows it in `$?`.
fn code(status: WaitStatus) -> Option<i32> {
    let of_signal = || status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or_else(of_signal)
}
