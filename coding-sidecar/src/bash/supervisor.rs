//! The supervisor: a process between the sidecar and one command. It ends the command with all
//! descendants.
//!
//! The sidecar starts its own program again as `supervise COMMAND`. This process is a child
//! subreaper: if the parent of a descendant ends, the descendant becomes a child of the supervisor,
//! even after `setsid`, two forks or `nohup`. So the supervisor kills its children until none is
//! left, and has then killed every descendant.
//!
//! The supervisor's standard input is one end of a socket pair. End-of-file there means that the
//! sidecar ends the command or was killed. The supervisor writes one [`Report`] to this socket.

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
/// The most time for killing the processes that the command left. Only a process that belongs to
/// another user or waits for a device still runs this long after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause between two rounds of killing, doubled up to [`ROUND_PAUSE_MAX`].
const ROUND_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause between two rounds of killing.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(20);

/// The most children that are reaped before standard input is checked again: a command can start
/// them faster than they are reaped.
const REAPED_MAX: usize = 256;

/// The supervisor's report to the sidecar about the end of the command.
#[derive(Debug, Deserialize, Serialize)]
pub struct Report {
    /// The exit code of the shell, or 128 + the number of the signal that ended it. The error says
    /// why there is no exit code.
    pub outcome: Result<i32, String>,
    /// The number of descendants that could not be killed.
    pub left: usize,
}

/// Runs `command`. When the command ends or the sidecar ends it, kills all its descendants.
pub fn supervise(command: &OsStr) -> ExitCode {
    match try_supervise(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "cannot supervise the command: {error} (only the sidecar itself may start \
                 `coding-sidecar supervise`)"
            );
            ExitCode::FAILURE
        }
    }
}

fn try_supervise(command: &OsStr) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut sidecar = control.try_clone()?;
    control.set_nonblocking(true)?;
    // A command may stop its supervisor with SIGSTOP. If the sidecar then dies, SIGCONT continues
    // the supervisor.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    set_child_subreaper(Some(getpid()))?;
    // Detaches from the terminal of the sidecar, if it has one. Fails if this process leads a
    // session already.
    let _ = setsid();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let report = runtime
        .block_on(run(command, control))
        .unwrap_or_else(|error| Report {
            outcome: Err(error.to_string()),
            // Unknown, so that the sidecar looks for them.
            left: 1,
        });
    // Fails if the sidecar has ended.
    let _ = sidecar.write_all(&serde_json::to_vec(&report)?);
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

/// Starts the command in a shell that leads its own process group.
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

/// Waits until the shell has ended, and meanwhile reaps the other children that end. Usually leaves
/// the shell unreaped and returns `None`, so that no other process or group gets the shell's id.
/// Only a shell that ends between the two system calls is reaped; then this returns its status.
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
        // Lets `run` check standard input.
        yield_now().await;
    }
}

/// Kills every child until there is none, for at most [`KILL_TIMEOUT`]. The children of a killed
/// child become children of this process and are killed in the next round. `exit_code` is that of
/// the shell, if it was reaped.
async fn kill_all(shell: Pid, mut exit_code: Option<i32>) -> io::Result<Report> {
    let deadline = Instant::now() + KILL_TIMEOUT;
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
            // Processes that ended since the round began may have left children to kill.
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
            // No pause: the children of the reaped ones must be killed before they fork.
            pause = ROUND_PAUSE;
        } else {
            sleep(pause).await;
            pause = (pause * 2).min(ROUND_PAUSE_MAX);
        }
    }
}

/// The exit code as in a shell's `$?`; `None` if the process has not ended.
fn code(status: WaitStatus) -> Option<i32> {
    let of_signal = || status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or_else(of_signal)
}
